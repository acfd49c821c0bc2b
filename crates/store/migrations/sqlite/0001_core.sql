-- The data model of one server. Times are milliseconds since 1970; json is text; uuids are text.

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    label      TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT;

-- A deleted agent keeps its row: its sessions stay readable, and a later deploy goes on counting versions.
CREATE TABLE agents (
    n          INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    config     TEXT NOT NULL DEFAULT '{}',
    env        TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    deleted_at INTEGER,
    UNIQUE (tenant, name)
) STRICT;

CREATE TABLE agent_versions (
    agent      INTEGER NOT NULL REFERENCES agents (n),
    version    INTEGER NOT NULL,
    tree       TEXT NOT NULL,
    runtime    TEXT NOT NULL,
    origin     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (agent, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE workspaces (
    id     TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    slug   TEXT,
    agent  TEXT NOT NULL,
    node   TEXT NOT NULL,
    epoch  INTEGER NOT NULL,
    UNIQUE (tenant, slug)
) STRICT;

CREATE TABLE sessions (
    n              INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant         TEXT NOT NULL,
    id             TEXT NOT NULL,
    workspace      TEXT NOT NULL REFERENCES workspaces (id),
    agent          TEXT NOT NULL,
    version        INTEGER NOT NULL,
    runtime        TEXT NOT NULL,
    status         TEXT NOT NULL,
    native_id      TEXT NOT NULL,
    options        TEXT NOT NULL,
    env            TEXT,
    parent         TEXT,
    -- A fork reads its parent's events up to base_seq instead of copying them.
    base_session   INTEGER REFERENCES sessions (n),
    base_seq       INTEGER NOT NULL DEFAULT 0,
    last_seq       INTEGER NOT NULL,
    title          TEXT,
    last_text      TEXT,
    turns          INTEGER NOT NULL DEFAULT 0,
    open_turns     INTEGER NOT NULL DEFAULT 0,
    problem        TEXT,
    checkpoint     INTEGER,
    created_at     INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    UNIQUE (tenant, id)
) STRICT;
CREATE INDEX sessions_by_age ON sessions (tenant, created_at DESC, n DESC);
CREATE INDEX sessions_by_workspace ON sessions (workspace);

CREATE TABLE turns (
    id      TEXT PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (n),
    seq     INTEGER NOT NULL,
    state   TEXT NOT NULL,
    attempt INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX turns_by_session ON turns (session, seq);

CREATE TABLE events (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    turn    TEXT,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    json    TEXT NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE deltas (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    turn    TEXT,
    at      INTEGER NOT NULL,
    json    TEXT NOT NULL,
    PRIMARY KEY (session, seq, n)
) STRICT, WITHOUT ROWID;

-- How far a shim's journal has been read, committed together with what was read.
CREATE TABLE journals (
    incarnation TEXT PRIMARY KEY,
    session     INTEGER NOT NULL REFERENCES sessions (n),
    position    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    workspace   TEXT NOT NULL,
    number      INTEGER NOT NULL,
    session     INTEGER NOT NULL,
    turn        TEXT,
    seq         INTEGER NOT NULL,
    tree        TEXT NOT NULL,
    consistency TEXT NOT NULL,
    salvage     INTEGER NOT NULL,
    files       INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (workspace, number)
) STRICT, WITHOUT ROWID;

-- The resource is named before it is made, so that a retry after a crash makes the same one.
CREATE TABLE idempotency (
    tenant   TEXT NOT NULL,
    route    TEXT NOT NULL,
    key      TEXT NOT NULL,
    hash     TEXT NOT NULL,
    resource TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (tenant, route, key)
) STRICT, WITHOUT ROWID;
