-- Who answers the built-in agent. NULL: whoever the server has a key for.
ALTER TABLE agent_versions ADD COLUMN provider TEXT;
