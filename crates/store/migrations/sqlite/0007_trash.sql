-- Sessions that are to be forgotten: nobody sees them any more, and after a while they go. NULL: it is there.
ALTER TABLE sessions ADD COLUMN trashed_at INTEGER;
CREATE INDEX sessions_trashed ON sessions (trashed_at) WHERE trashed_at IS NOT NULL;
