The history table, for SQLite and PostgreSQL alike. Braces stand for names and expressions of the
dialect and never for values, which are bound: {table}, {index} and {indexed} are quoted names, {now}
is the bound time of the caller or the clock of the database.

The conditions are those of rules.py.

-- name: create_table
-- expires_at_ms: from then on the row counts as forgotten. done: 0 or 1.
CREATE TABLE IF NOT EXISTS {table} (
    key           TEXT PRIMARY KEY,
    source        TEXT NOT NULL,
    fence         BIGINT NOT NULL,
    run           TEXT NOT NULL,
    done          INTEGER NOT NULL,
    result        TEXT,
    since_ms      BIGINT NOT NULL,
    held_until_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
)

-- name: create_index
CREATE INDEX IF NOT EXISTS {index} ON {indexed} (expires_at_ms)

-- name: begin
-- One row if the holder may go ahead, none if it may not. In a transaction of the user it is done
-- from the start (:done = 1): nobody sees the row before the effect.
INSERT INTO {table} AS entry
    (key, source, fence, run, done, result, since_ms, held_until_ms, expires_at_ms)
VALUES (:key, :source, :fence, :run, :done, NULL, {now}, {now} + :hold_ms, {now} + :window_ms)
ON CONFLICT (key) DO UPDATE SET
    source = excluded.source, fence = excluded.fence, run = excluded.run, done = excluded.done,
    result = NULL, since_ms = excluded.since_ms, held_until_ms = excluded.held_until_ms,
    expires_at_ms = excluded.expires_at_ms
WHERE entry.expires_at_ms <= excluded.since_ms
   OR (entry.done = 0 AND (
          (entry.source <> excluded.source AND entry.held_until_ms <= excluded.since_ms)
       OR (entry.source = excluded.source
           AND (entry.fence < excluded.fence OR entry.run = excluded.run))))
RETURNING 1

-- name: finish
-- One row if it is recorded, none if somebody else took over.
INSERT INTO {table} AS entry
    (key, source, fence, run, done, result, since_ms, held_until_ms, expires_at_ms)
VALUES (:key, :source, :fence, :run, 1, :result, {now}, {now}, {now} + :window_ms)
ON CONFLICT (key) DO UPDATE SET
    source = excluded.source, fence = excluded.fence, run = excluded.run, done = 1,
    result = excluded.result, since_ms = excluded.since_ms,
    held_until_ms = excluded.held_until_ms, expires_at_ms = excluded.expires_at_ms
WHERE entry.expires_at_ms <= excluded.since_ms
   OR entry.run = excluded.run
   OR (entry.done = 0 AND entry.source = excluded.source AND entry.fence < excluded.fence)
RETURNING 1

-- name: set_result
UPDATE {table} SET result = :result WHERE key = :key AND run = :run

-- name: abandon
DELETE FROM {table} WHERE key = :key AND run = :run AND done = 0

-- name: look
SELECT source, fence, run, done, result, since_ms, held_until_ms, expires_at_ms
FROM {table} WHERE key = :key AND expires_at_ms > {now}

-- name: forget
DELETE FROM {table} WHERE key = :key

-- name: sweep
DELETE FROM {table} WHERE key IN (
    SELECT key FROM {table} WHERE expires_at_ms <= {now}
    ORDER BY expires_at_ms LIMIT :limit {skip_locked}
)
