-- What the object store was found to have lost, until it is sent again: a pack that needs one of these is not said to be
-- there before it is. A row goes when the pack is there, or is needed no more.
CREATE TABLE far_missing (
    tenant TEXT NOT NULL,
    pack   TEXT NOT NULL,
    PRIMARY KEY (tenant, pack)
) STRICT, WITHOUT ROWID;

-- How long the objects are that were sent besides packs: a shorter one is cut.
CREATE TABLE far_objects (
    key  TEXT PRIMARY KEY,
    size INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
