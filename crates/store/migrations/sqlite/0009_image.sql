-- What an agent's containers are made from. NULL: the server's own image.
ALTER TABLE agent_versions ADD COLUMN image TEXT;
