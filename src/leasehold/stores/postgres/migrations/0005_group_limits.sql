-- As in the SQLite store.
CREATE TABLE group_rate (
    scope      bigint NOT NULL,
    group_id   text COLLATE "C" NOT NULL,
    full_at_us bigint NOT NULL,
    PRIMARY KEY (scope, group_id)
);

CREATE TABLE group_halt (
    scope      bigint NOT NULL,
    group_id   text COLLATE "C" NOT NULL,
    message_id text,
    reason     text,
    since_ms   bigint NOT NULL,
    PRIMARY KEY (scope, group_id)
);

CREATE TABLE group_hold (
    scope    bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    session  text,
    fence    bigint NOT NULL,
    since_ms bigint NOT NULL,
    state    bytea NOT NULL,
    PRIMARY KEY (scope, group_id)
);

CREATE INDEX group_hold_by_session ON group_hold (session) WHERE session IS NOT NULL;
