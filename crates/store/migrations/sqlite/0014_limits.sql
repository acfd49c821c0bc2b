-- How much of the machine an agent's sandboxes may take, as JSON. NULL: as the server says.
ALTER TABLE agent_versions ADD COLUMN limits TEXT;

-- What the sandboxes of a workspace took of the machine. One row, so that it does not grow with every start: what those
-- before the last one used, and what the last one did, which is only ever told as a sum since it began. Whoever tells it
-- twice, or dies in between, counts nothing twice.
CREATE TABLE resources (
    workspace   TEXT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    -- CPU time in milliseconds.
    before_ms   INTEGER NOT NULL,
    cpu_ms      INTEGER NOT NULL,
    -- The most that any of them had, in bytes.
    peak_memory INTEGER NOT NULL,
    -- What its files take on the disk, when they were last looked at.
    disk_bytes  INTEGER NOT NULL,
    files       INTEGER NOT NULL,
    at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
