-- What an agent wants of its sandboxes besides an image and limits (scripts that are run in them, calls that are refused
-- otherwise), as JSON. NULL: nothing.
ALTER TABLE agent_versions ADD COLUMN needs TEXT;
