The statements of the SQLite store. Identifiers never come from users; values are always bound.

-- name: load_meta
SELECT name, value FROM meta

-- name: set_meta
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2

-- name: load_queues
SELECT account, name, partition, metadata, policies, lapsed_receipts, created_at_ms, message_count
FROM queue

-- name: insert_queue
INSERT INTO queue (account, name, partition, metadata, policies, lapsed_receipts, created_at_ms,
                   message_count)
VALUES (?, ?, ?, ?, '[]', ?, ?, 0)

-- name: delete_queue
DELETE FROM queue WHERE account = ? AND name = ?

-- name: drop_partition
INSERT INTO dropped_partition (partition) VALUES (?)

-- name: move_queue
UPDATE queue SET partition = ?, message_count = 0 WHERE account = ? AND name = ?

-- name: set_count
UPDATE queue SET message_count = ? WHERE account = ? AND name = ?

-- name: set_metadata
UPDATE queue SET metadata = ? WHERE account = ? AND name = ?

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
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body)
VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?)

-- name: next_visible
-- Plan: SEARCH message USING INDEX message_by_visibility (partition=? AND visible_at_ms>? AND
-- visible_at_ms<?), no sort. The lower bound spares the receives that come while many messages have
-- expired and none of them is retired yet.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, body
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?2 AND expires_at_ms > ?2
ORDER BY visible_at_ms, row_key LIMIT ?3

-- name: lease
UPDATE message SET visible_at_ms = ?1, dequeue_count = ?2, fence = ?3 WHERE row_key = ?4

-- name: get_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, body
FROM message WHERE row_key = ? AND partition = ? AND visible_at_ms IS NOT NULL

-- name: renew
UPDATE message SET visible_at_ms = ?1, fence = ?2 WHERE row_key = ?3

-- name: renew_with_body
UPDATE message SET visible_at_ms = ?1, fence = ?2, body = ?4 WHERE row_key = ?3

-- name: complete
-- The receipt is checked in the statement that acts. The last bound is now for queues under the
-- strict rule and -1 otherwise; retired rows, where it is compared with NULL, never match.
DELETE FROM message
WHERE row_key = ?1 AND partition = ?2 AND fence = ?3 AND message_id = ?4
  AND expires_at_ms > ?5 AND visible_at_ms > ?6
RETURNING row_key

-- name: remove
DELETE FROM message WHERE row_key = ?

-- name: expired
SELECT row_key, partition, expires_at_ms FROM message INDEXED BY message_by_expiry
-- Those that expire at the same moment as the last one retired are looked at once more.
WHERE expires_at_ms >= ?1 AND expires_at_ms <= ?2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
  AND partition NOT IN (SELECT partition FROM dropped_partition)
ORDER BY expires_at_ms, row_key LIMIT ?3

-- name: retire
UPDATE message SET visible_at_ms = NULL WHERE row_key = ?

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
