-- Bodies move out of the rows that change with every lease: 0 it is here, 1 in message_body, 2 in
-- the body store, under the key that is here. What an older store wrote stays where it is.
ALTER TABLE message ADD COLUMN place INTEGER NOT NULL DEFAULT 0;

CREATE TABLE message_body (
    row_key INTEGER PRIMARY KEY,
    content BLOB NOT NULL
) STRICT;

-- Keys of the body store that no message refers to any more.
CREATE TABLE body_garbage (
    key TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE INDEX message_by_body_key ON message (body) WHERE place = 2;

-- Whatever removes a message removes its body.
CREATE TRIGGER message_body_gone AFTER DELETE ON message WHEN old.place = 1 BEGIN
    DELETE FROM message_body WHERE row_key = old.row_key;
END;

CREATE TRIGGER message_body_key_gone AFTER DELETE ON message WHEN old.place = 2 BEGIN
    INSERT OR IGNORE INTO body_garbage (key) VALUES (CAST(old.body AS TEXT));
END;

-- The session that the current or last lease belongs to.
ALTER TABLE message ADD COLUMN session TEXT;
CREATE INDEX message_by_session ON message (session) WHERE session IS NOT NULL;

CREATE TABLE session (
    session_id TEXT PRIMARY KEY,
    content    TEXT NOT NULL                  -- JSON, without the heartbeats
) STRICT, WITHOUT ROWID;

CREATE TABLE stream (
    stream_id      INTEGER PRIMARY KEY,
    account        TEXT NOT NULL,
    queue          TEXT NOT NULL,
    name           TEXT NOT NULL,
    token          INTEGER NOT NULL,
    last_settled   INTEGER NOT NULL,
    attached_at_ms INTEGER NOT NULL,
    UNIQUE (account, queue, name)
) STRICT;

-- The members of a claim are the messages of its partition, in their lanes. While it is open their
-- rows say when they were visible before; that they are hidden until until_ms is said here alone.
CREATE TABLE claim (
    partition INTEGER PRIMARY KEY,
    stream_id INTEGER NOT NULL,
    lanes     INTEGER NOT NULL,
    content   TEXT NOT NULL                   -- JSON
) STRICT;

CREATE TABLE staged_transaction (
    account       TEXT NOT NULL,
    name          TEXT NOT NULL,
    state         TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    until_ms      INTEGER NOT NULL,
    rows          INTEGER NOT NULL,           -- published
    PRIMARY KEY (account, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX staged_transaction_by_end ON staged_transaction (until_ms);

CREATE TABLE staged_part (
    account TEXT NOT NULL,
    name    TEXT NOT NULL,
    part    TEXT NOT NULL,
    chunks  INTEGER NOT NULL,
    PRIMARY KEY (account, name, part)
) STRICT, WITHOUT ROWID;

-- What a part has staged for one queue is a partition of its own.
CREATE TABLE staged_slot (
    partition INTEGER PRIMARY KEY,
    account   TEXT NOT NULL,
    name      TEXT NOT NULL,
    part      TEXT NOT NULL,
    queue     TEXT NOT NULL,
    lanes     INTEGER NOT NULL,
    rows      INTEGER NOT NULL
) STRICT;

-- The events of one batch each.
CREATE TABLE event_batch (
    seq     INTEGER PRIMARY KEY,
    at_ms   INTEGER NOT NULL,
    events  INTEGER NOT NULL,
    size    INTEGER NOT NULL,                 -- bytes of content
    content BLOB NOT NULL
) STRICT;

-- What background tasks keep for themselves.
CREATE TABLE note (
    name    TEXT PRIMARY KEY,
    content TEXT NOT NULL
) STRICT, WITHOUT ROWID;
