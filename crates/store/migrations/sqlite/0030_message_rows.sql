-- The rows that clients know as messages, so that one is found by its ordinal without reading the log before it. The server
-- says which they are: an index over the text would read every line as JSON once more, however long it is.
ALTER TABLE events ADD COLUMN is_message INTEGER NOT NULL DEFAULT 0;
UPDATE events SET is_message = 1 WHERE kind = 'queued'
    OR (kind = 'said' AND CASE WHEN json_valid(json) THEN json_extract(json, '$.type') END IN ('assistant', 'result'));
CREATE INDEX message_rows ON events (session, seq) WHERE is_message = 1;
