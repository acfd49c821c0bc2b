-- What models' answers used. It follows from the `used` events, and is written with them, in one transaction; here it is
-- summed for those who ask for more than one session. When a session is forgotten this stays, without its name: whoever
-- paid for it has paid.
CREATE TABLE usage (
    -- The number of the session, which is never another's.
    session     INTEGER NOT NULL,
    -- '': none, what the agent used between turns.
    turn        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    model       TEXT NOT NULL,
    -- Since 1970, in UTC.
    day         INTEGER NOT NULL,
    tenant      TEXT NOT NULL,
    owner       TEXT,
    agent       TEXT NOT NULL,
    -- The id of the session; NULL: it was forgotten.
    id          TEXT,
    input       INTEGER NOT NULL,
    output      INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    cache_read  INTEGER NOT NULL,
    -- In billionths of a dollar, and whether there is something among it whose price nobody knew.
    nano_usd    INTEGER NOT NULL,
    unpriced    INTEGER NOT NULL,
    -- Answers of the agent's own loop.
    rounds      INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (session, turn, attempt, model, day)
) STRICT, WITHOUT ROWID;
-- A tenant's of a stretch of time. By agent and owner few are left out, so they have no index of their own.
CREATE INDEX usage_by_tenant ON usage (tenant, first_at);
