-- What a queue's owner can set, JSON without the defaults. The rule for lapsed receipts moves there.
ALTER TABLE queue ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
UPDATE queue SET settings = json_object('lapsed_receipts', lapsed_receipts)
WHERE lapsed_receipts <> 'until-retaken';
ALTER TABLE queue DROP COLUMN lapsed_receipts;

-- A queue's messages of priority p are in the lane p * 2^40 + partition, those of the default
-- priority in the partition itself. Bit p of lanes is set once there was a message of priority p.
ALTER TABLE queue ADD COLUMN lanes INTEGER NOT NULL DEFAULT 256;

-- The first partition that the queue had: names its deduplication keys, also after it was cleared.
ALTER TABLE queue ADD COLUMN scope INTEGER NOT NULL DEFAULT 0;
UPDATE queue SET scope = partition;

-- phase: 0 put, 1 put with a delay, 2 received, 3 given back; since_ms: when that happened.
ALTER TABLE message ADD COLUMN phase INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0;
-- When it became visible before its last lease, and what there is to say of that lease.
ALTER TABLE message ADD COLUMN visible_since_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message ADD COLUMN holder TEXT;
-- JSON: properties, type, attempts and what else few messages have.
ALTER TABLE message ADD COLUMN detail TEXT;

-- Of the messages that were there, those matter that may be invisible now. When they were received
-- was not kept; the time at which they were put stands in for it.
UPDATE message SET phase = iif(dequeue_count > 0, 2, 1), since_ms = inserted_at_ms
WHERE row_key IN (
    SELECT m.row_key FROM queue q
    JOIN message m INDEXED BY message_by_visibility
      ON m.partition = q.partition
     AND m.visible_at_ms > (SELECT value FROM meta WHERE name = 'last_seen_ms'));

-- The oldest delayed, leased and deferred messages of a queue.
CREATE INDEX message_by_phase ON message (partition, phase, since_ms) WHERE phase > 0;

CREATE TABLE dedup_key (
    scope          INTEGER NOT NULL,
    key            TEXT NOT NULL,
    message_id     BLOB NOT NULL,             -- of the first message, with its times as it was put
    inserted_at_ms INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    visible_at_ms  INTEGER NOT NULL,
    until_ms       INTEGER NOT NULL,          -- end of the window
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_key_by_end ON dedup_key (until_ms);

CREATE TABLE job (
    job_id        TEXT PRIMARY KEY,
    account       TEXT NOT NULL,
    queue         TEXT NOT NULL,
    over          INTEGER NOT NULL,           -- 1 once it is done or stopped
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    content       TEXT NOT NULL               -- JSON
) STRICT, WITHOUT ROWID;
