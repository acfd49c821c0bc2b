-- The rows that clients know as messages, so that one is found by its ordinal without reading the log before it.
CREATE INDEX message_rows ON events (session, seq) WHERE (kind = 'queued' OR (kind = 'said' AND CASE WHEN json_valid(json) THEN json_extract(json, '$.type') END IN ('assistant', 'result')));
