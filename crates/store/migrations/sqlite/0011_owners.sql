-- Whose it is of a tenant's people. NULL: nobody's in particular; then only keys without an owner open it.
ALTER TABLE api_keys ADD COLUMN owner TEXT;
ALTER TABLE workspaces ADD COLUMN owner TEXT;
ALTER TABLE sessions ADD COLUMN owner TEXT;
-- What callers note on it, a flat JSON object of strings. NULL: nothing.
ALTER TABLE sessions ADD COLUMN metadata TEXT;
-- Seconds, as in its options. A column of its own: whoever looks for what is over must not parse everybody's options.
ALTER TABLE sessions ADD COLUMN ttl INTEGER;

-- An owner's list, newest first, which is most of what keys with an owner ask for: not a walk over everybody's.
CREATE INDEX sessions_by_owner ON sessions (tenant, owner, created_at DESC, n DESC) WHERE owner IS NOT NULL;
-- The sessions of a workspace by its name: few of many. Those with a workspace of their own are not in it.
CREATE INDEX sessions_by_slug ON sessions (tenant, slug) WHERE slug IS NOT NULL;
-- Rules ask for what has rested for long. Sessions at work, whose rows change with every step, are not in it, so their
-- steps do not pay for it.
CREATE INDEX sessions_at_rest ON sessions (status, last_active_at)
    WHERE trashed_at IS NULL AND status IN ('paused', 'stopped', 'error', 'ended');
-- The few with a time to live. Without the time of their last activity, for the same reason.
CREATE INDEX sessions_with_ttl ON sessions (ttl) WHERE ttl IS NOT NULL AND trashed_at IS NULL;
-- None for metadata, whose names are anybody's, nor for beginnings of ids, which the ids' own index serves.

-- As before, with the owner, which a view made of w.* does not get by itself.
DROP VIEW named_workspaces;
CREATE VIEW named_workspaces AS
SELECT w.*,
    (SELECT count(*) FROM sessions s WHERE s.workspace = w.id AND s.trashed_at IS NULL) AS sessions,
    (SELECT max(number) FROM checkpoints c WHERE c.workspace = w.id) AS checkpoint
FROM workspaces w WHERE w.slug IS NOT NULL;

-- Who ordered the end that a session is on its way to, as JSON. It becomes a line of the audit in the transaction that ends
-- the session. NULL: nobody.
ALTER TABLE sessions ADD COLUMN ordered TEXT;

-- Every deletion, and every key that was made or removed: who ordered it, when, and by which rule. Written in the
-- transaction of the deed, read for ever, changed by nobody.
CREATE TABLE audit (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    deed     TEXT NOT NULL,
    -- The id of the session or key, or the name of the workspace.
    subject  TEXT NOT NULL,
    -- Whose that was.
    owner    TEXT,
    by_key   TEXT,
    by_owner TEXT,
    rule     TEXT
) STRICT;
-- What became of one session, among everybody's for years.
CREATE INDEX audit_by_subject ON audit (tenant, subject, n);
-- Pages of a tenant's, newest first.
CREATE INDEX audit_by_tenant ON audit (tenant, n);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
