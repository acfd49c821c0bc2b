-- The few rows that say what of a log does not count any more: each list of messages needs all of them, and must not read
-- the whole log for it.
CREATE INDEX superseding_rows ON events (session, seq) WHERE kind IN ('forked', 'continued', 'requeued', 'rewound');
