-- What a session in the trash was called; its `id` is free for another one from then on. The object store still knows it by
-- this name. NULL: it is not in the trash.
ALTER TABLE sessions ADD COLUMN purged_id TEXT;
-- The numbers of its tombstone. What is made under its id later has a higher epoch, and its workspace may get one, too.
ALTER TABLE sessions ADD COLUMN purged_epoch INTEGER;
ALTER TABLE sessions ADD COLUMN purged_seq INTEGER;
CREATE INDEX sessions_by_purged_id ON sessions (tenant, purged_id) WHERE purged_id IS NOT NULL;
-- Forks, by the session that they were made from, and by the one whose log they share.
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_base ON sessions (base_session) WHERE base_session IS NOT NULL;

-- The number of the session that the subject names; NULL: it names none, or one that was not made yet.
ALTER TABLE audit ADD COLUMN session INTEGER;
CREATE INDEX audit_by_session ON audit (session) WHERE session IS NOT NULL;
-- Lines stay as they are, but for the names of purged sessions.
DROP TRIGGER audit_is_not_changed;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
WHEN NOT (
    (new.n, new.at, new.tenant, new.deed, new.owner, new.by_key, new.by_owner, new.rule, new.id, new.session)
        IS (old.n, old.at, old.tenant, old.deed, old.owner, old.by_key, old.by_owner, old.rule, old.id, old.session)
    AND (new.subject = old.subject OR new.subject GLOB 'purged:*')
    AND (new.detail IS old.detail OR coalesce(old.detail, '') GLOB 'fork of *')
)
BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
