-- Keys for model services. The key is sealed as the environments of sessions are.
CREATE TABLE credentials (
    n            INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    tenant       TEXT NOT NULL,
    -- NULL: it belongs to the keys without an owner.
    owner        TEXT,
    kind         TEXT NOT NULL,
    label        TEXT NOT NULL,
    key          TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER
) STRICT;
CREATE INDEX credentials_by_tenant ON credentials (tenant, n);
