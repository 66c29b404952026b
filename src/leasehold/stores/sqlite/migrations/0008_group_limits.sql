-- What is kept of a group beside its messages; scope is that of the queue.

-- How far messages that were given out have used up the rate of their group: at full_at_us the
-- whole burst can be given out again. Rows whose moment has passed mean nothing.
CREATE TABLE group_rate (
    scope      INTEGER NOT NULL,
    group_id   TEXT NOT NULL,
    full_at_us INTEGER NOT NULL,
    PRIMARY KEY (scope, group_id)
) STRICT, WITHOUT ROWID;

-- Groups that give nothing until an operator lets them go on.
CREATE TABLE group_halt (
    scope      INTEGER NOT NULL,
    group_id   TEXT NOT NULL,
    message_id TEXT,                          -- the message that was poisoned
    reason     TEXT,
    since_ms   INTEGER NOT NULL,
    PRIMARY KEY (scope, group_id)
) STRICT, WITHOUT ROWID;

-- Groups that a session holds, or has held, and what was saved for them.
CREATE TABLE group_hold (
    scope    INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    session  TEXT,                            -- NULL if no session holds it
    fence    INTEGER NOT NULL,                -- rises with each hold
    since_ms INTEGER NOT NULL,
    state    BLOB NOT NULL,
    PRIMARY KEY (scope, group_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX group_hold_by_session ON group_hold (session) WHERE session IS NOT NULL;
