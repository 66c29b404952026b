The statements of the SQLite store. Identifiers never come from users; values are always bound.

-- name: load_meta
SELECT name, value FROM meta

-- name: set_meta
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2

-- name: load_queues
SELECT account, name, partition, metadata, policies, settings, created_at_ms, message_count, lanes,
       scope
FROM queue

-- name: insert_queue
INSERT INTO queue (account, name, partition, metadata, policies, settings, created_at_ms,
                   message_count, lanes, scope)
VALUES (?, ?, ?, ?, '[]', ?, ?, 0, ?, ?)

-- name: delete_queue
DELETE FROM queue WHERE account = ? AND name = ?

-- name: drop_partition
INSERT INTO dropped_partition (partition) VALUES (?)

-- name: move_queue
UPDATE queue SET partition = ?, lanes = ?, message_count = 0 WHERE account = ? AND name = ?

-- name: set_count
UPDATE queue SET message_count = ? WHERE account = ? AND name = ?

-- name: set_metadata
UPDATE queue SET metadata = ? WHERE account = ? AND name = ?

-- name: set_settings
UPDATE queue SET settings = ? WHERE account = ? AND name = ?

-- name: set_lanes
UPDATE queue SET lanes = ? WHERE account = ? AND name = ?

-- name: set_policies
UPDATE queue SET policies = ? WHERE account = ? AND name = ?

-- name: list_queues
-- Bounds of the names with a prefix: from the prefix to the prefix with a character behind it that
-- is above all that a name may contain.
SELECT name FROM queue
WHERE account = ?1 AND name >= max(?2, ?3) AND name < ?2 || '~'
ORDER BY name LIMIT ?4

-- name: get_document
SELECT content FROM account_document WHERE account = ? AND kind = ?

-- name: set_document
INSERT INTO account_document (account, kind, content) VALUES (?1, ?2, ?3)
ON CONFLICT (account, kind) DO UPDATE SET content = ?3

-- name: put
-- Also for many rows at once; see many_rows.
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body, phase, since_ms, detail)
VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?)

-- name: next_visible
-- Plan: SEARCH message USING INDEX message_by_visibility (partition=? AND visible_at_ms>? AND
-- visible_at_ms<?), no sort. The lower bound spares the receives that come while many messages have
-- expired and none of them is retired yet.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, body,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?2 AND expires_at_ms > ?2
ORDER BY visible_at_ms, row_key LIMIT ?3

-- name: lease
UPDATE message SET visible_at_ms = ?1, dequeue_count = ?2, fence = ?3, phase = 2, since_ms = ?4,
                   visible_since_ms = visible_at_ms, renewals = 0, holder = ?5
WHERE row_key = ?6

-- name: lease_many
-- First deliveries of one receive.
UPDATE message SET visible_at_ms = ?1, dequeue_count = dequeue_count + 1, fence = fence + 1,
                   phase = 2, since_ms = ?2, visible_since_ms = visible_at_ms, renewals = 0,
                   holder = ?3
WHERE row_key IN carray(?4)

-- name: lease_again
UPDATE message SET visible_at_ms = ?1, dequeue_count = ?2, fence = ?3, phase = 2, since_ms = ?4,
                   visible_since_ms = visible_at_ms, renewals = 0, holder = ?5, detail = ?7
WHERE row_key = ?6

-- name: get_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, body,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition
FROM message
WHERE row_key = ? AND partition & 1099511627775 = ? AND visible_at_ms IS NOT NULL

-- name: find_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, body,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition
FROM message WHERE row_key = ? AND partition & 1099511627775 = ?

-- name: renew
UPDATE message SET visible_at_ms = ?1, fence = ?2, phase = ?4, since_ms = ?5, renewals = ?6
WHERE row_key = ?3

-- name: rewrite
-- Everything that can change. The lane changes with the priority, or when the message moves to
-- another queue.
UPDATE message SET visible_at_ms = ?1, fence = ?2, phase = ?4, since_ms = ?5, renewals = ?6,
                   detail = ?7, partition = ?8, expires_at_ms = ?9, dequeue_count = ?10
WHERE row_key = ?3

-- name: rewrite_with_body
UPDATE message SET visible_at_ms = ?1, fence = ?2, phase = ?4, since_ms = ?5, renewals = ?6,
                   detail = ?7, partition = ?8, expires_at_ms = ?9, dequeue_count = ?10, body = ?11
WHERE row_key = ?3

-- name: complete
-- The receipt is checked in the statement that acts. The last bound is now for queues under the
-- strict rule and -1 otherwise; retired rows, where it is compared with NULL, never match.
DELETE FROM message
WHERE row_key = ?1 AND partition & 1099511627775 = ?2 AND fence = ?3 AND message_id = ?4
  AND expires_at_ms > ?5 AND visible_at_ms > ?6
RETURNING row_key, visible_at_ms, phase

-- name: to_complete
-- For runs of completes: what the receipts are checked against, within the transaction that acts.
SELECT row_key, partition & 1099511627775, fence, message_id, expires_at_ms, visible_at_ms, phase
FROM message WHERE row_key IN carray(?) AND visible_at_ms IS NOT NULL

-- name: remove_many
DELETE FROM message WHERE row_key IN carray(?)

-- name: remove
DELETE FROM message WHERE row_key = ?

-- name: find_key
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms FROM dedup_key
WHERE scope = ? AND key = ? AND until_ms > ?

-- name: keep_key
INSERT INTO dedup_key (scope, key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (scope, key) DO UPDATE
SET message_id = ?3, inserted_at_ms = ?4, expires_at_ms = ?5, visible_at_ms = ?6, until_ms = ?7

-- name: forget_keys
DELETE FROM dedup_key WHERE (scope, key) IN (
    SELECT scope, key FROM dedup_key INDEXED BY dedup_key_by_end
    WHERE until_ms <= ?1 ORDER BY until_ms LIMIT ?2)

-- name: timeline
SELECT visible_at_ms / 1000, phase, count(*) FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?2 GROUP BY 1, 2

-- name: this_second
-- What becomes visible later in the second that has begun.
SELECT phase, count(*) FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms > ?2 AND visible_at_ms < ?3 GROUP BY phase

-- name: not_yet_retired
-- The limit is on the rows looked at, whichever queue they are of.
SELECT visible_at_ms, phase, partition & 1099511627775 = ?3 FROM (
    SELECT visible_at_ms, phase, partition FROM message INDEXED BY message_by_expiry
    WHERE expires_at_ms >= ?1 AND expires_at_ms <= ?2 AND expires_at_ms < 253402300799000
      AND visible_at_ms IS NOT NULL
    LIMIT ?4)

-- name: oldest_in_phase
SELECT since_ms, visible_at_ms, expires_at_ms
FROM message INDEXED BY message_by_phase
WHERE partition = ?1 AND phase = ?2 AND phase > 0 AND since_ms >= ?3
ORDER BY since_ms LIMIT ?4 OFFSET ?5

-- name: next_invisible
SELECT visible_at_ms FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms > ?2 AND expires_at_ms > visible_at_ms
ORDER BY visible_at_ms LIMIT 1

-- name: keys_by_visibility
-- For queues that are a small part of the store, or small: all their keys, sorted.
SELECT row_key FROM message INDEXED BY message_by_visibility
WHERE partition IN (SELECT value FROM json_each(?1)) AND row_key > ?2 AND row_key <= ?3
ORDER BY row_key LIMIT ?4

-- name: retired
SELECT count(*) FROM (
    SELECT 1 FROM message INDEXED BY message_by_visibility
    WHERE partition IN (SELECT value FROM json_each(?1)) AND visible_at_ms IS NULL LIMIT ?2)

-- name: invisible_keys
-- As above, for those that are invisible now.
SELECT row_key FROM message INDEXED BY message_by_visibility
WHERE partition IN (SELECT value FROM json_each(?1)) AND visible_at_ms > ?5
  AND row_key > ?2 AND row_key <= ?3
ORDER BY row_key LIMIT ?4

-- name: keys_by_age
-- For queues that are a large part of the store: row by row.
SELECT row_key, partition & 1099511627775 FROM message NOT INDEXED
WHERE row_key > ?1 AND row_key <= ?2 ORDER BY row_key LIMIT ?3

-- name: rows_of_keys
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, body,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition,
       visible_at_ms IS NULL
FROM message WHERE row_key IN (SELECT value FROM json_each(?1)) ORDER BY row_key

-- name: keep_job
INSERT INTO job (job_id, account, queue, over, created_at_ms, updated_at_ms, content)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (job_id) DO UPDATE SET over = ?4, updated_at_ms = ?6, content = ?7

-- name: get_job
SELECT content FROM job WHERE job_id = ?

-- name: list_jobs
SELECT content FROM job
WHERE iif(?1 IS NULL, over = 0, account = ?1) AND (?2 IS NULL OR queue = ?2)
ORDER BY created_at_ms DESC, job_id LIMIT ?3

-- name: forget_jobs
DELETE FROM job WHERE over = 1 AND updated_at_ms <= ?

-- name: expired
SELECT row_key, partition, expires_at_ms, visible_at_ms, phase
FROM message INDEXED BY message_by_expiry
-- Those that expire at the same moment as the last one retired are looked at once more.
WHERE expires_at_ms >= ?1 AND expires_at_ms <= ?2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
  AND partition NOT IN (SELECT partition FROM dropped_partition)
ORDER BY expires_at_ms, row_key LIMIT ?3

-- name: retire
UPDATE message SET visible_at_ms = NULL, phase = 0 WHERE row_key = ?

-- name: remove_retired
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message INDEXED BY message_by_expiry
    WHERE expires_at_ms < ?1 AND expires_at_ms < 253402300799000 AND visible_at_ms IS NULL
      AND partition NOT IN (SELECT partition FROM dropped_partition)
    ORDER BY expires_at_ms, row_key LIMIT ?2)

-- name: dropped_partitions
SELECT partition FROM dropped_partition ORDER BY partition

-- name: reap
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message INDEXED BY message_by_visibility WHERE partition = ?1 LIMIT ?2)

-- name: forget_partition
DELETE FROM dropped_partition WHERE partition = ?
