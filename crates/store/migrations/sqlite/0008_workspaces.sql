-- Workspaces with a name, which several sessions share. One that is being deleted is nobody's any more.
ALTER TABLE workspaces ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN deleting_at INTEGER;
-- The name that it had when the session was made: it says that the workspace is shared, even after it was deleted.
ALTER TABLE sessions ADD COLUMN slug TEXT;

-- Several sessions may be at work in one sandbox, each with a process of its own.
CREATE TABLE places (
    incarnation TEXT NOT NULL,
    session     INTEGER NOT NULL REFERENCES sessions (n),
    process     INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    PRIMARY KEY (incarnation, session)
) STRICT, WITHOUT ROWID;
INSERT INTO places SELECT incarnation, session, 1, position FROM journals;
DROP TABLE journals;
ALTER TABLE places RENAME TO journals;

CREATE VIEW named_workspaces AS
SELECT w.*,
    (SELECT count(*) FROM sessions s WHERE s.workspace = w.id AND s.trashed_at IS NULL) AS sessions,
    (SELECT max(number) FROM checkpoints c WHERE c.workspace = w.id) AS checkpoint
FROM workspaces w WHERE w.slug IS NOT NULL;
