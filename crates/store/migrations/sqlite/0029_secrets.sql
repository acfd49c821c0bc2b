-- The values of `headers` and `env` in a session's `mcpServers`, by JSON pointer, as one sealed JSON object. The options
-- hold `***` in their places. NULL: none.
ALTER TABLE sessions ADD COLUMN secrets TEXT;
