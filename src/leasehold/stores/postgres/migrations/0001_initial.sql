-- The tables are those of the SQLite store after its migrations, so that rows can be moved from one
-- to the other as they are; what only many servers on one database need is at the end.

CREATE TABLE meta (
    name    text COLLATE "C" PRIMARY KEY,
    number  bigint,
    content bytea
);

CREATE TABLE account_document (
    account text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (account, kind)
);

CREATE TABLE queue (
    account       text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    partition     bigint NOT NULL UNIQUE,
    metadata      text NOT NULL,
    policies      text NOT NULL,
    created_at_ms bigint NOT NULL,
    settings      text NOT NULL DEFAULT '{}',
    lanes         bigint NOT NULL DEFAULT 256,
    scope         bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (account, name)
);

CREATE TABLE dropped_partition (
    partition bigint PRIMARY KEY
);

-- A lease changes visible_at_ms, which is indexed, so no update of it is heap-only and the room that
-- fillfactor leaves would not spare an index entry: there are as few indexes as can be. What matters
-- is that dead rows are taken away soon: vacuum runs by the number of changes, not by a share of a
-- table that may be almost empty, and does not pause. Long bodies are kept out of the row, where a
-- lease does not write them again, and not compressed: that took longer than it saved.
CREATE TABLE message (
    row_key          bigint PRIMARY KEY,
    partition        bigint NOT NULL,
    message_id       bytea NOT NULL,
    inserted_at_ms   bigint NOT NULL,
    expires_at_ms    bigint NOT NULL,
    visible_at_ms    bigint,
    dequeue_count    bigint NOT NULL,
    fence            bigint NOT NULL,
    body             bytea NOT NULL,
    phase            smallint NOT NULL DEFAULT 0,
    since_ms         bigint NOT NULL DEFAULT 0,
    visible_since_ms bigint NOT NULL DEFAULT 0,
    renewals         bigint NOT NULL DEFAULT 0,
    holder           text,
    detail           text,
    place            smallint NOT NULL DEFAULT 0,
    session          text,
    saved            boolean NOT NULL DEFAULT false
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_cost_delay = 0, toast_tuple_target = 256
);

ALTER TABLE message ALTER COLUMN body SET STORAGE EXTERNAL;

-- See the head of queries.sql for the expression.
CREATE INDEX message_by_visibility ON message (partition, visible_at_ms, (row_key + 0));
CREATE INDEX message_by_expiry ON message (expires_at_ms, row_key)
    WHERE expires_at_ms < 253402300799000;
CREATE INDEX message_by_body_key ON message (body) WHERE place = 2;
CREATE INDEX message_by_session ON message (session, row_key) WHERE session IS NOT NULL;

CREATE TABLE message_body (
    row_key bigint PRIMARY KEY,
    content bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE message_saved (
    row_key bigint PRIMARY KEY,
    content text NOT NULL
);

CREATE TABLE body_garbage (
    key text COLLATE "C" PRIMARY KEY
);

-- Whatever removes a message removes its body and what was saved. Most have neither: for those the
-- conditions cost nothing.
CREATE FUNCTION message_body_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM message_body WHERE row_key = old.row_key;
    RETURN NULL;
END $$;
CREATE TRIGGER message_body_gone AFTER DELETE ON message
    FOR EACH ROW WHEN (old.place = 1) EXECUTE FUNCTION message_body_gone();

CREATE FUNCTION message_saved_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM message_saved WHERE row_key = old.row_key;
    RETURN NULL;
END $$;
CREATE TRIGGER message_saved_gone AFTER DELETE ON message
    FOR EACH ROW WHEN (old.saved) EXECUTE FUNCTION message_saved_gone();

CREATE FUNCTION message_body_key_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO body_garbage (key) VALUES (convert_from(old.body, 'UTF8')) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER message_body_key_gone AFTER DELETE ON message
    FOR EACH ROW WHEN (old.place = 2) EXECUTE FUNCTION message_body_key_gone();

CREATE TABLE dedup_key (
    scope          bigint NOT NULL,
    key            text COLLATE "C" NOT NULL,
    message_id     bytea NOT NULL,
    inserted_at_ms bigint NOT NULL,
    expires_at_ms  bigint NOT NULL,
    visible_at_ms  bigint NOT NULL,
    until_ms       bigint NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX dedup_key_by_end ON dedup_key (until_ms);

CREATE TABLE job (
    job_id        text COLLATE "C" PRIMARY KEY,
    account       text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    over          boolean NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    content       text NOT NULL
);

CREATE TABLE session (
    session_id text COLLATE "C" PRIMARY KEY,
    content    text NOT NULL
);

CREATE TABLE stream (
    stream_id      bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    account        text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    token          bigint NOT NULL,
    last_settled   bigint NOT NULL,
    attached_at_ms bigint NOT NULL,
    settled_with   text,
    UNIQUE (account, queue, name)
);

CREATE TABLE claim (
    partition bigint PRIMARY KEY,
    stream_id bigint NOT NULL,
    lanes     bigint NOT NULL,
    content   text NOT NULL
);

CREATE TABLE claim_exemption (
    partition bigint NOT NULL,
    row_key   bigint NOT NULL,
    content   text NOT NULL,
    PRIMARY KEY (partition, row_key)
);

CREATE TABLE staged_transaction (
    account       text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    state         text NOT NULL,
    created_at_ms bigint NOT NULL,
    until_ms      bigint NOT NULL,
    rows          bigint NOT NULL,
    duplicates    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (account, name)
);

CREATE INDEX staged_transaction_by_end ON staged_transaction (until_ms, account, name);

CREATE TABLE staged_part (
    account text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    part    text COLLATE "C" NOT NULL,
    chunks  bigint NOT NULL,
    PRIMARY KEY (account, name, part)
);

CREATE TABLE staged_slot (
    partition bigint PRIMARY KEY,
    account   text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    part      text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    lanes     bigint NOT NULL,
    rows      bigint NOT NULL,
    keyed     bigint NOT NULL DEFAULT 0
);

CREATE TABLE staged_binding (
    account text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    stream  text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    token   bigint NOT NULL,
    PRIMARY KEY (account, name, queue, stream, number)
);

CREATE TABLE event_batch (
    seq     bigint PRIMARY KEY,
    at_ms   bigint NOT NULL,
    events  bigint NOT NULL,
    size    bigint NOT NULL,
    content bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
-- It is packed by us as well as it can be.
ALTER TABLE event_batch ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE TABLE note (
    name    text COLLATE "C" PRIMARY KEY,
    content text NOT NULL
);

-- Many servers ------------------------------------------------------------------------------------

-- One row. Batches on messages hold the table in a weak lock; whatever changes what servers keep in
-- memory holds it alone, and raises the version, so that the others read all that anew.
CREATE TABLE change (
    version bigint NOT NULL,
    waits   bigint NOT NULL DEFAULT 1
);
INSERT INTO change (version) VALUES (1);

-- Queues that somebody waits for, and on which server. Its changes raise change.waits; a server is
-- entered with the store to itself, so that no batch is under way that does not know of it.
CREATE TABLE waiting (
    account text COLLATE "C" NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    slot    bigint NOT NULL,
    PRIMARY KEY (account, queue, slot)
);

-- Servers take row keys by blocks.
CREATE SEQUENCE row_key_block MINVALUE 0 START 0;

CREATE SEQUENCE event_seq;

-- Servers, each with a slot of its own for what it counts: rows that all of them changed would make
-- them wait for each other.
CREATE TABLE server (
    slot          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    started_at_ms bigint NOT NULL,
    seen_at_ms    bigint NOT NULL
);

-- Of a partition the messages that are not retired; of partition 0 the bytes of events.
CREATE TABLE counted (
    partition bigint NOT NULL,
    slot      bigint NOT NULL,
    number    bigint NOT NULL,
    PRIMARY KEY (partition, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

-- Heartbeats, and what workers said of their messages to a watchdog.
CREATE TABLE session_heard (
    session_id text COLLATE "C" PRIMARY KEY,
    heard_ms   bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE session_sign (
    session_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    told_ms    bigint NOT NULL,
    PRIMARY KEY (session_id, message_id)
) WITH (fillfactor = 50);

INSERT INTO meta (name, number) VALUES
    ('row_keys_after', 0),
    ('last_partition', 0),
    ('retired_until_ms', 0),
    ('last_seen_ms', 0);
