-- What the object store has of all this. NULL: it is still to be sent; the row itself is the wish to send it, so it is made
-- in the transaction that made it necessary, and a crash forgets none.
ALTER TABLE checkpoints ADD COLUMN far_at INTEGER;
-- Every change of an agent has a number, and the store has those up to the other.
ALTER TABLE agents ADD COLUMN changes INTEGER NOT NULL DEFAULT 1;
ALTER TABLE agents ADD COLUMN far_changes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agent_versions ADD COLUMN far_at INTEGER;
-- The log is there up to this event.
ALTER TABLE sessions ADD COLUMN far_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN far_checkpoint INTEGER;
CREATE INDEX checkpoints_to_send ON checkpoints (at) WHERE far_at IS NULL AND removed_at IS NULL;

-- Everything that a pack needs was there before it: who is listed here can be restored.
CREATE TABLE far_packs (
    tenant TEXT NOT NULL,
    pack   TEXT NOT NULL,
    size   INTEGER NOT NULL,
    PRIMARY KEY (tenant, pack)
) STRICT, WITHOUT ROWID;

-- Which object store that is: of another one nothing is known.
CREATE TABLE far (
    place TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Objects that are to be deleted there.
CREATE TABLE far_doomed (
    n   INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    at  INTEGER NOT NULL
) STRICT;
