-- Things the store keeps about itself, one value per name.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- Documents that a dialect keeps for an account.
CREATE TABLE account_document (
    account TEXT NOT NULL,
    kind    TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (account, kind)
) STRICT, WITHOUT ROWID;

-- A queue's messages are those of its partition. Clearing a queue gives it a new partition, so that
-- it takes as long with ten million messages as with one; the old partition is reaped by and by.
CREATE TABLE queue (
    account         TEXT NOT NULL,
    name            TEXT NOT NULL,
    partition       INTEGER NOT NULL UNIQUE,
    metadata        TEXT NOT NULL,            -- JSON object
    policies        TEXT NOT NULL,            -- JSON array
    lapsed_receipts TEXT NOT NULL,            -- 'until-retaken' or 'strict'
    created_at_ms   INTEGER NOT NULL,
    message_count   INTEGER NOT NULL,         -- rows of the partition that are not retired
    PRIMARY KEY (account, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE dropped_partition (
    partition INTEGER PRIMARY KEY
) STRICT;

-- visible_at_ms is NULL in a retired row: expired, set aside for good, not yet removed.
CREATE TABLE message (
    row_key        INTEGER PRIMARY KEY,       -- also inside message_id; rises, never used twice
    partition      INTEGER NOT NULL,
    message_id     BLOB NOT NULL,             -- 16 bytes
    inserted_at_ms INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    visible_at_ms  INTEGER,
    dequeue_count  INTEGER NOT NULL,
    fence          INTEGER NOT NULL,
    body           BLOB NOT NULL
) STRICT;

-- Receives walk this index from the front; the row key, which every index carries, breaks ties.
CREATE INDEX message_by_visibility ON message (partition, visible_at_ms);

-- For the sweep. Messages that never expire are left out.
CREATE INDEX message_by_expiry ON message (expires_at_ms) WHERE expires_at_ms < 253402300799000;

INSERT INTO meta (name, value) VALUES
    ('row_keys_reserved', 0),                 -- no row key above this has ever been used
    ('last_partition', 0),
    ('retired_until_ms', 0),                  -- the sweep has dealt with what expired before
    ('last_seen_ms', 0);                      -- the store's time when it last swept
