-- Since when the object store has the tombstone of a session in the trash. NULL: it is still to be sent.
ALTER TABLE sessions ADD COLUMN tombstone_far_at INTEGER;
-- What exactly was done, where the subject alone does not say it.
ALTER TABLE audit ADD COLUMN detail TEXT;
