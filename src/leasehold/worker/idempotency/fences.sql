The newest fence of each message, for SQLite and PostgreSQL alike. See queries.sql for the braces.

-- name: create_table
CREATE TABLE IF NOT EXISTS {table} (
    name          TEXT PRIMARY KEY,
    fence         BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
)

-- name: create_index
CREATE INDEX IF NOT EXISTS {index} ON {indexed} (expires_at_ms)

-- name: admit
-- One row if the fence is not older than the newest, none if it is. The row stays locked until the
-- transaction ends: whoever comes next, older or newer, waits and sees it.
INSERT INTO {table} AS entry (name, fence, expires_at_ms)
VALUES (:name, :fence, {now} + :window_ms)
ON CONFLICT (name) DO UPDATE SET
    fence = excluded.fence, expires_at_ms = excluded.expires_at_ms
WHERE entry.fence <= excluded.fence OR entry.expires_at_ms <= {now}
RETURNING 1

-- name: look
SELECT fence FROM {table} WHERE name = :name

-- name: sweep
DELETE FROM {table} WHERE name IN (
    SELECT name FROM {table} WHERE expires_at_ms <= {now}
    ORDER BY expires_at_ms LIMIT :limit {skip_locked}
)
