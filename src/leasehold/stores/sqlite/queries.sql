The statements of the SQLite store. Identifiers never come from users; values are always bound.

-- part: BODY
-- Of a row, wherever it stands; see the migrations exactly_once and segments.
CASE place WHEN 0 THEN body WHEN 3 THEN
    (SELECT substr(content, (CAST(body AS INTEGER) >> 28) + 1, CAST(body AS INTEGER) & 1048575)
     FROM body_segment WHERE first_key = message.row_key - (CAST(body AS INTEGER) >> 20 & 255))
ELSE coalesce((SELECT content FROM message_body b WHERE b.row_key = message.row_key), x'') END

-- part: JOINED
-- The same with SEGMENTS, which SQLite reads once for rows in order, and BODY for each.
CASE place WHEN 3
     THEN substr(s.content, (CAST(body AS INTEGER) >> 28) + 1, CAST(body AS INTEGER) & 1048575)
     WHEN 0 THEN body
     ELSE coalesce((SELECT content FROM message_body b WHERE b.row_key = message.row_key), x'') END

-- part: SEGMENTS
LEFT JOIN body_segment s
    ON s.first_key = iif(place = 3, row_key - (CAST(body AS INTEGER) >> 20 & 255), NULL)

-- part: SIZE
-- Of a body, where it can be without reading it.
CASE place WHEN 0 THEN length(body) WHEN 3 THEN CAST(body AS INTEGER) & 1048575
     WHEN 1 THEN iif(length(body), CAST(body AS INTEGER),
                     coalesce((SELECT length(content) FROM message_body b
                               WHERE b.row_key = message.row_key), 0))
     ELSE coalesce(json_extract(detail, '$.body_ref.size_bytes'), 0) END

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
                     dequeue_count, fence, body, phase, since_ms, detail, place, group_id)
VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?)

-- name: put_alike
-- Messages that differ by id and body alone. A body of more than ?9 bytes stands apart; how long it
-- is stands in its place, for whoever asks only that.
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body, phase, since_ms, detail, place)
SELECT ?1 + rowid - 1, ?2, substr(?3, rowid * 16 - 15, 16), ?4, ?5, ?6, 0, 0,
       iif(length(value) > ?9, CAST(length(value) AS BLOB), value), ?7, ?4, ?8, length(value) > ?9
FROM carray(?10)

-- name: put_bodies
INSERT INTO message_body (row_key, content)
SELECT ?1 + rowid - 1, value FROM carray(?3) WHERE length(value) > ?2

-- name: put_in_segments
-- The same where each body is in a segment, at the places given.
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body, phase, since_ms, detail, place)
SELECT ?1 + rowid - 1, ?2, substr(?3, rowid * 16 - 15, 16), ?4, ?5, ?6, 0, 0,
       CAST(value AS BLOB), ?7, ?4, ?8, 3
FROM carray(?9)

-- name: put_segment
INSERT INTO body_segment (first_key, last_key, content) VALUES (?, ?, ?)

-- name: put_body
INSERT INTO message_body (row_key, content) VALUES (?, ?)

-- name: replace_body
INSERT INTO message_body (row_key, content) VALUES (?1, ?2)
ON CONFLICT (row_key) DO UPDATE SET content = ?2

-- name: remove_body
DELETE FROM message_body WHERE row_key = ?

-- name: body_place
SELECT place, body FROM message WHERE row_key = ?

-- name: set_body
UPDATE message SET body = ?2, place = ?3 WHERE row_key = ?1

-- name: keep_saved
INSERT INTO message_saved (row_key, content) VALUES (?1, ?2)
ON CONFLICT (row_key) DO UPDATE SET content = ?2

-- name: remove_saved
DELETE FROM message_saved WHERE row_key = ?

-- name: mark_saved
UPDATE message SET saved = ?2 WHERE row_key = ?1

-- name: keep_garbage
INSERT OR IGNORE INTO body_garbage (key) VALUES (?)

-- name: read_garbage
SELECT key FROM body_garbage ORDER BY key LIMIT ?

-- name: forget_garbage
DELETE FROM body_garbage WHERE key = ?

-- name: some_bodies
SELECT body FROM message INDEXED BY message_by_body_key WHERE place = 2 LIMIT ?

-- name: known_body
SELECT 1 FROM message INDEXED BY message_by_body_key WHERE body = ? AND place = 2 LIMIT 1

-- name: next_visible
-- Plan: SEARCH message USING INDEX message_by_visibility (partition=? AND visible_at_ms>? AND
-- visible_at_ms<?), no sort. The lower bound spares the receives that come while many messages have
-- expired and none of them is retired yet.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL)
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?5 AND expires_at_ms > ?2
ORDER BY visible_at_ms, row_key LIMIT ?3

-- name: next_visible_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?5 AND expires_at_ms > ?2
ORDER BY visible_at_ms, row_key LIMIT ?3

-- name: next_visible_with_sizes
-- The length of a body is known without reading it.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL,
       {SIZE}
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?5 AND expires_at_ms > ?2
ORDER BY visible_at_ms, row_key LIMIT ?3

-- name: next_run
-- As next_visible_without_bodies, in one row: what is the same in all of them need not be told of
-- each. The limit keeps the order of what is joined.
SELECT count(*), max(dequeue_count), max(detail IS NOT NULL),
       CAST(group_concat(message_id, '') AS BLOB), min(row_key), max(row_key), sum(size),
       min(inserted_at_ms), max(inserted_at_ms), min(expires_at_ms), max(expires_at_ms),
       min(visible_at_ms), max(visible_at_ms), min(fence), max(fence), min(phase), max(phase)
FROM (SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count,
             fence, phase, detail, 0 AS size
      FROM message INDEXED BY message_by_visibility
      WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?2 AND expires_at_ms > ?2
      ORDER BY visible_at_ms, row_key LIMIT ?3)

-- name: next_run_with_sizes
SELECT count(*), max(dequeue_count), max(detail IS NOT NULL),
       CAST(group_concat(message_id, '') AS BLOB), min(row_key), max(row_key), sum(size),
       min(inserted_at_ms), max(inserted_at_ms), min(expires_at_ms), max(expires_at_ms),
       min(visible_at_ms), max(visible_at_ms), min(fence), max(fence), min(phase), max(phase)
FROM (SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count,
             fence, phase, detail, {SIZE} AS size
      FROM message INDEXED BY message_by_visibility
      WHERE partition = ?1 AND visible_at_ms >= ?4 AND visible_at_ms <= ?2 AND expires_at_ms > ?2
      ORDER BY visible_at_ms, row_key LIMIT ?3)

-- name: group_heads
-- Of each of some groups the next that was never received, and the next that was. Names come as bytes,
-- as texts of carray can have no character 0.
SELECT CAST(g.value AS TEXT), row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
       dequeue_count, fence, {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL)
FROM carray(?2) g CROSS JOIN message
WHERE row_key IN (
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 0 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?4)
    UNION ALL
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 1 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?5))

-- name: group_fronts
-- Of each of some groups the next that was never received, where there is one, without a look at any
-- other row: with it whether anything was received that is visible up to some moment (?4), and when
-- the one behind it is visible. An entry of the index may be of a message that has expired.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL),
       group_id,
       EXISTS (SELECT 1 FROM message r INDEXED BY message_by_group
               WHERE r.partition = ?1 AND r.group_id = message.group_id
                 AND (r.dequeue_count > 0) = 1 AND r.visible_at_ms <= ?4),
       (SELECT n.visible_at_ms FROM message n INDEXED BY message_by_group
        WHERE n.partition = ?1 AND n.group_id = message.group_id AND (n.dequeue_count > 0) = 0
          AND n.visible_at_ms IS NOT NULL
        ORDER BY n.visible_at_ms, n.row_key LIMIT 1 OFFSET 1)
FROM carray(?2) g CROSS JOIN message
WHERE row_key = (
    SELECT m.row_key FROM message m INDEXED BY message_by_group
    WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
      AND (m.dequeue_count > 0) = 0 AND m.visible_at_ms <= ?3 AND m.expires_at_ms > ?3
    ORDER BY m.visible_at_ms, m.row_key LIMIT 1)

-- name: group_front
-- The same of one group, in 6 us and not 10.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL),
       group_id,
       EXISTS (SELECT 1 FROM message r INDEXED BY message_by_group
               WHERE r.partition = ?1 AND r.group_id = message.group_id
                 AND (r.dequeue_count > 0) = 1 AND r.visible_at_ms <= ?4),
       (SELECT n.visible_at_ms FROM message n INDEXED BY message_by_group
        WHERE n.partition = ?1 AND n.group_id = message.group_id AND (n.dequeue_count > 0) = 0
          AND n.visible_at_ms IS NOT NULL
        ORDER BY n.visible_at_ms, n.row_key LIMIT 1 OFFSET 1)
FROM message
WHERE row_key = (
    SELECT m.row_key FROM message m INDEXED BY message_by_group
    WHERE m.partition = ?1 AND m.group_id = ?2
      AND (m.dequeue_count > 0) = 0 AND m.visible_at_ms <= ?3 AND m.expires_at_ms > ?3
    ORDER BY m.visible_at_ms, m.row_key LIMIT 1)

-- name: group_heads_without_bodies
SELECT CAST(g.value AS TEXT), row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
       dequeue_count, fence, x'', phase, since_ms,
       visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM carray(?2) g CROSS JOIN message
WHERE row_key IN (
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 0 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?4)
    UNION ALL
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 1 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?5))

-- name: group_heads_with_sizes
SELECT CAST(g.value AS TEXT), row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
       dequeue_count, fence, x'', phase, since_ms,
       visible_since_ms, renewals, holder, detail, partition, session, NULL,
       {SIZE}
FROM carray(?2) g CROSS JOIN message
WHERE row_key IN (
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 0 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?4)
    UNION ALL
    SELECT row_key FROM (
        SELECT m.row_key FROM message m INDEXED BY message_by_group
        WHERE m.partition = ?1 AND m.group_id = CAST(g.value AS TEXT)
          AND (m.dequeue_count > 0) = 1 AND m.visible_at_ms <= ?6 AND m.expires_at_ms > ?3
        ORDER BY m.visible_at_ms, m.row_key LIMIT ?5))

-- name: groups_held
-- What was received and is not visible: all, what is on leases, and when the first of it is free;
-- nothing is visible that was not found just before, as nobody else writes.
SELECT CAST(g.value AS TEXT), count(*), sum(phase = 2), min(min(visible_at_ms, expires_at_ms)), 0
FROM carray(?2) g CROSS JOIN message INDEXED BY message_by_group
WHERE partition = ?1 AND group_id = CAST(g.value AS TEXT) AND (dequeue_count > 0) = 1
  AND visible_at_ms > ?3 AND expires_at_ms > ?3
GROUP BY g.value

-- name: group_held_rows
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_group
WHERE partition = ?1 AND group_id = ?2 AND (dequeue_count > 0) = 1 AND visible_at_ms > ?3
  AND expires_at_ms > ?3
ORDER BY visible_at_ms, row_key LIMIT ?4

-- name: groups_members
SELECT CAST(g.value AS TEXT), count(*)
FROM carray(?2) g CROSS JOIN message INDEXED BY message_by_group
WHERE partition = ?1 AND group_id = CAST(g.value AS TEXT) AND (dequeue_count > 0) = 1
GROUP BY g.value

-- name: lane_in_flight
-- How many messages of each group are on leases, among the first of what is not visible.
SELECT group_id, count(*) FROM (
    SELECT group_id, phase, expires_at_ms FROM message INDEXED BY message_by_visibility
    WHERE partition = ?1 AND visible_at_ms > ?2 ORDER BY visible_at_ms LIMIT ?3)
WHERE phase = 2 AND expires_at_ms > ?2
GROUP BY group_id

-- name: lane_members
-- The same of members that a claim hides.
SELECT group_id, count(*) FROM (
    SELECT group_id FROM message INDEXED BY message_by_visibility WHERE partition = ?1 LIMIT ?2)
GROUP BY group_id

-- name: groups_next
-- When the next of what is not visible is, of what was never received and of what was.
SELECT CAST(g.value AS TEXT),
       (SELECT min(visible_at_ms) FROM message INDEXED BY message_by_group
        WHERE partition = ?1 AND group_id = CAST(g.value AS TEXT) AND (dequeue_count > 0) = 0
          AND visible_at_ms > ?3),
       (SELECT min(visible_at_ms) FROM message INDEXED BY message_by_group
        WHERE partition = ?1 AND group_id = CAST(g.value AS TEXT) AND (dequeue_count > 0) = 1
          AND visible_at_ms > ?3)
FROM carray(?2) g

-- name: group_rows
-- Of one group, received before or not, from a place on; what is retired has no place.
SELECT group_id, dequeue_count > 0, visible_at_ms, row_key, phase, expires_at_ms, 0
FROM message INDEXED BY message_by_group
WHERE partition = ?1 AND group_id = ?2 AND (dequeue_count > 0) = ?3
  AND (visible_at_ms, row_key) > (?4, ?5)
ORDER BY visible_at_ms, row_key LIMIT ?6

-- name: group_rows_after
-- Of all groups whose names come later; what is retired comes first of each.
SELECT group_id, dequeue_count > 0, coalesce(visible_at_ms, -1), row_key, phase, expires_at_ms,
       visible_at_ms IS NULL
FROM message INDEXED BY message_by_group
WHERE partition = ?1 AND group_id > ?2
ORDER BY group_id, dequeue_count > 0, visible_at_ms, row_key LIMIT ?3

-- name: group_rates
SELECT group_id, full_at_us FROM group_rate
WHERE scope = ?1 AND group_id IN (SELECT CAST(value AS TEXT) FROM carray(?2))

-- name: keep_rate
INSERT INTO group_rate (scope, group_id, full_at_us) VALUES (?1, ?2, ?3)
ON CONFLICT (scope, group_id) DO UPDATE SET full_at_us = ?3

-- name: forget_rates
DELETE FROM group_rate WHERE scope = ?

-- name: load_halts
SELECT scope, group_id, since_ms, message_id, reason FROM group_halt

-- name: keep_halt
INSERT INTO group_halt (scope, group_id, since_ms, message_id, reason) VALUES (?, ?, ?, ?, ?)

-- name: drop_halt
DELETE FROM group_halt WHERE scope = ? AND group_id = ?

-- name: forget_halts
DELETE FROM group_halt WHERE scope = ?

-- name: load_holds
SELECT scope, group_id, session, fence, since_ms FROM group_hold WHERE session IS NOT NULL

-- name: holds_of_session
SELECT scope, group_id FROM group_hold WHERE session = ?1 ORDER BY scope, group_id

-- name: keep_hold
INSERT INTO group_hold (scope, group_id, session, fence, since_ms, state)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (scope, group_id) DO UPDATE SET session = ?3, fence = ?4, since_ms = ?5

-- name: end_hold
UPDATE group_hold SET session = NULL WHERE scope = ?1 AND group_id = ?2

-- name: forget_empty_hold
DELETE FROM group_hold WHERE scope = ?1 AND group_id = ?2 AND session IS NULL AND length(state) = 0

-- name: group_state
SELECT state FROM group_hold WHERE scope = ?1 AND group_id = ?2

-- name: save_group_state
UPDATE group_hold SET state = ?3 WHERE scope = ?1 AND group_id = ?2

-- name: forget_holds
DELETE FROM group_hold WHERE scope = ?1

-- name: groups_of_lane
-- Each group with the place of its first message: a few looks into the index for each, however many
-- messages it has.
WITH RECURSIVE found (name) AS (
    SELECT min(group_id) FROM message INDEXED BY message_by_group
    WHERE partition = ?1 AND group_id IS NOT NULL
    UNION ALL
    SELECT (SELECT min(group_id) FROM message INDEXED BY message_by_group
            WHERE partition = ?1 AND group_id > name)
    FROM found WHERE name IS NOT NULL),
kinds (received) AS (VALUES (0), (1))
SELECT name,
       (SELECT visible_at_ms FROM message INDEXED BY message_by_group
        WHERE partition = ?1 AND group_id = name AND (dequeue_count > 0) = received
          AND visible_at_ms IS NOT NULL
        ORDER BY visible_at_ms, row_key LIMIT 1) AS at_ms,
       (SELECT row_key FROM message INDEXED BY message_by_group
        WHERE partition = ?1 AND group_id = name AND (dequeue_count > 0) = received
          AND visible_at_ms IS NOT NULL
        ORDER BY visible_at_ms, row_key LIMIT 1)
FROM found CROSS JOIN kinds WHERE name IS NOT NULL AND at_ms IS NOT NULL

-- name: bytes_of_lane
SELECT coalesce(sum({SIZE}), 0)
FROM message INDEXED BY message_by_visibility WHERE partition = ?

-- name: members
-- Of one lane of a claim, in their order, from a moment on. Who reads a claim is not shown what was
-- saved.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?2
ORDER BY visible_at_ms, row_key LIMIT ?3 OFFSET ?4

-- name: members_of_moment
-- The rest of a moment. A pair of moment and row to compare with would walk over all of the moment
-- again: messages published together share one.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms = ?2 AND row_key > ?3
ORDER BY row_key LIMIT ?4

-- name: members_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?2
ORDER BY visible_at_ms, row_key LIMIT ?3 OFFSET ?4

-- name: member_columns
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       detail, partition
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?2
ORDER BY visible_at_ms, row_key LIMIT ?3 OFFSET ?4

-- name: member_columns_of_moment
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       {BODY},
       detail, partition
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms = ?2 AND row_key > ?3
ORDER BY row_key LIMIT ?4

-- name: member_run
-- As member_columns, in one row: what is the same in all members need not be told of each. The
-- limit keeps the order of what is joined.
SELECT count(*), max(detail IS NOT NULL), CAST(group_concat(message_id, '') AS BLOB),
       group_concat(length(content)), CAST(group_concat(content, '') AS BLOB),
       min(inserted_at_ms), max(inserted_at_ms), min(expires_at_ms), max(expires_at_ms),
       min(visible_at_ms), max(visible_at_ms), min(dequeue_count), max(dequeue_count),
       min(fence), max(fence)
FROM (SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
             {JOINED} AS content,
             detail
      FROM message INDEXED BY message_by_visibility {SEGMENTS}
      WHERE partition = ?1 AND visible_at_ms >= ?2
      ORDER BY visible_at_ms, row_key LIMIT ?3 OFFSET ?4)

-- name: member_run_of_moment
SELECT count(*), max(detail IS NOT NULL), CAST(group_concat(message_id, '') AS BLOB),
       group_concat(length(content)), CAST(group_concat(content, '') AS BLOB),
       min(inserted_at_ms), max(inserted_at_ms), min(expires_at_ms), max(expires_at_ms),
       min(visible_at_ms), max(visible_at_ms), min(dequeue_count), max(dequeue_count),
       min(fence), max(fence)
FROM (SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
             {JOINED} AS content,
             detail
      FROM message INDEXED BY message_by_visibility {SEGMENTS}
      WHERE partition = ?1 AND visible_at_ms = ?2 AND row_key > ?3
      ORDER BY row_key LIMIT ?4)

-- name: member_place
-- Of one member of several lanes that are read as one.
SELECT visible_at_ms, row_key FROM message INDEXED BY message_by_visibility
WHERE partition IN carray(?1) AND visible_at_ms IS NOT NULL
ORDER BY visible_at_ms, row_key LIMIT 1 OFFSET ?2

-- name: member_cores
-- A member is visible when its claim says so (?2); its own time is its place.
SELECT message_id, inserted_at_ms, expires_at_ms, ?2, dequeue_count, fence, 2, since_ms,
       visible_since_ms, 0, partition, detail
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms IS NOT NULL ORDER BY visible_at_ms, row_key

-- name: cores_of_lane
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, phase,
       since_ms, visible_since_ms, renewals, partition, detail
FROM message INDEXED BY message_by_visibility
WHERE partition = ? AND visible_at_ms IS NOT NULL ORDER BY visible_at_ms, row_key

-- name: cores_of_keys
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, phase,
       since_ms, visible_since_ms, renewals, partition, detail
FROM message WHERE row_key IN carray(?) ORDER BY row_key

-- name: count_lane
SELECT count(*) FROM message INDEXED BY message_by_visibility
WHERE partition = ? AND visible_at_ms IS NOT NULL

-- name: first_expiry
SELECT min(expires_at_ms) FROM message INDEXED BY message_by_visibility WHERE partition = ?

-- name: soon_in_lane
-- What the timeline has counted of the messages that were moved to a lane.
SELECT visible_at_ms / 1000, phase, count(*) FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms >= ?2 GROUP BY 1, 2

-- name: claim_many
-- The row goes on saying when it was visible, which is its place in the claim.
UPDATE message SET partition = (partition >> 40) << 40 | ?1, dequeue_count = dequeue_count + 1,
                   fence = fence + 1, phase = 2, since_ms = ?2, visible_since_ms = visible_at_ms,
                   renewals = 0, holder = ?3
WHERE row_key IN carray(?4)

-- name: claim_run
-- The same for rows that follow each other: to look each of them up would take a third longer.
UPDATE message SET partition = (partition >> 40) << 40 | ?1, dequeue_count = dequeue_count + 1,
                   fence = fence + 1, phase = 2, since_ms = ?2, visible_since_ms = visible_at_ms,
                   renewals = 0, holder = ?3
WHERE row_key BETWEEN ?4 AND ?5

-- name: claim_again
-- As above for a message that was received before. Its body and its time to live stay.
UPDATE message SET partition = (partition >> 40) << 40 | ?2, visible_at_ms = ?3, detail = ?5,
                   dequeue_count = dequeue_count + 1, fence = fence + 1, phase = 2, since_ms = ?6,
                   visible_since_ms = ?4, renewals = 0, holder = ?7, session = NULL
WHERE row_key = ?1

-- name: set_place
-- Of a member that was visible before, in its group.
UPDATE message SET visible_at_ms = ?2 WHERE row_key = ?1

-- name: return_many
-- Members that are alike: claimed at the same moment, and never received before.
UPDATE message SET partition = (partition >> 40) << 40 | ?1, visible_at_ms = ?2, since_ms = ?2,
                   fence = fence + 1, phase = 3, detail = ?3
WHERE row_key IN carray(?4)

-- name: unclaim_many
UPDATE message SET partition = (partition >> 40) << 40 | ?1, visible_at_ms = ?2
WHERE row_key IN carray(?3)

-- name: load_streams
SELECT stream_id, account, queue, name, token, last_settled, attached_at_ms, settled_with
FROM stream

-- name: keep_stream
INSERT INTO stream (account, queue, name, token, last_settled, attached_at_ms)
VALUES (?, ?, ?, ?, ?, ?) RETURNING stream_id

-- name: set_stream
UPDATE stream SET token = ?2, last_settled = ?3, attached_at_ms = ?4, settled_with = ?5
WHERE stream_id = ?1

-- name: drop_stream
DELETE FROM stream WHERE stream_id = ?

-- name: load_claims
SELECT partition, stream_id, lanes, content FROM claim

-- name: keep_claim
INSERT INTO claim (partition, stream_id, lanes, content) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (partition) DO UPDATE SET lanes = ?3, content = ?4

-- name: drop_claim
DELETE FROM claim WHERE partition = ?

-- name: keep_exemption
INSERT INTO claim_exemption (partition, row_key, content) VALUES (?1, ?2, ?3)
ON CONFLICT (partition, row_key) DO UPDATE SET content = ?3

-- name: known_exemptions
SELECT row_key FROM claim_exemption WHERE partition = ? AND row_key IN carray(?)

-- name: get_exemptions
SELECT row_key, content FROM claim_exemption WHERE partition = ? ORDER BY row_key

-- name: forget_exemptions
DELETE FROM claim_exemption WHERE partition = ?

-- name: load_slots
SELECT partition, account, name, part, queue, lanes, rows, keyed FROM staged_slot

-- name: last_event_batch
SELECT seq FROM event_batch ORDER BY seq DESC LIMIT 1

-- name: first_event_batch
SELECT seq, at_ms FROM event_batch ORDER BY seq LIMIT 1

-- name: log_bytes
SELECT coalesce(sum(size), 0) FROM event_batch WHERE seq > ?

-- name: store_bytes
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()

-- name: keep_events
INSERT INTO event_batch (seq, at_ms, events, size, content) VALUES (?, ?, ?, ?, ?)

-- name: read_events
SELECT seq, at_ms, content FROM event_batch WHERE seq > ? ORDER BY seq

-- name: read_events_back
SELECT seq, at_ms, content FROM event_batch WHERE seq <= ? ORDER BY seq DESC LIMIT ?

-- name: oldest_events
SELECT seq, size FROM event_batch WHERE seq <= ? ORDER BY seq LIMIT ?

-- name: trim_events
DELETE FROM event_batch WHERE seq <= ?

-- name: keep_note
INSERT INTO note (name, content) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET content = ?2

-- name: read_note
SELECT content FROM note WHERE name = ?

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
                   visible_since_ms = visible_at_ms, renewals = 0, holder = ?5, detail = ?7,
                   session = ?8
WHERE row_key = ?6

-- name: get_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL)
FROM message
WHERE row_key = ? AND visible_at_ms IS NOT NULL

-- name: find_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL),
       visible_at_ms IS NULL
FROM message WHERE row_key = ?

-- name: renew
UPDATE message SET visible_at_ms = ?1, fence = ?2, phase = ?4, since_ms = ?5, renewals = ?6
WHERE row_key = ?3

-- name: rewrite
-- Everything that can change but the body and what was saved. The lane changes with the priority,
-- or when the message moves to another queue.
UPDATE message SET visible_at_ms = ?1, fence = ?2, phase = ?4, since_ms = ?5, renewals = ?6,
                   detail = ?7, partition = ?8, expires_at_ms = ?9, dequeue_count = ?10,
                   visible_since_ms = ?11, holder = ?12, session = ?13
WHERE row_key = ?3

-- name: complete
-- The receipt is checked in the statement that acts. The last bound is now for queues under the
-- strict rule and -1 otherwise; retired rows, where it is compared with NULL, never match.
DELETE FROM message
WHERE row_key = ?1 AND partition & 1099511627775 = ?2 AND fence = ?3 AND message_id = ?4
  AND expires_at_ms > ?5 AND visible_at_ms > ?6
RETURNING row_key, visible_at_ms, phase, inserted_at_ms, expires_at_ms, dequeue_count, since_ms,
          visible_since_ms, renewals, holder, partition, session, detail

-- name: to_complete
-- For runs of completes: what the receipts are checked against, within the transaction that acts.
SELECT row_key, partition, fence, message_id, expires_at_ms, visible_at_ms, phase, inserted_at_ms,
       dequeue_count, since_ms, visible_since_ms, renewals, holder, session, detail
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
SELECT visible_at_ms, phase, partition & 1099511627775 FROM message INDEXED BY message_by_expiry
WHERE expires_at_ms >= ?1 AND expires_at_ms <= ?2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
LIMIT ?3

-- name: oldest_in_phase
SELECT since_ms, visible_at_ms, expires_at_ms
FROM message INDEXED BY message_by_phase
WHERE partition = ?1 AND phase = ?2 AND phase > 0 AND partition & 549755813888 = 0
  AND since_ms >= ?3
ORDER BY since_ms LIMIT ?4 OFFSET ?5

-- name: to_catch_up
-- What was put or given back without a delay, at a time that is to come once more.
SELECT row_key FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms > ?2 AND visible_at_ms <= ?3 AND since_ms = visible_at_ms
ORDER BY visible_at_ms, row_key LIMIT ?4

-- name: next_invisible
SELECT visible_at_ms FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 AND visible_at_ms > ?2 AND expires_at_ms > visible_at_ms
ORDER BY visible_at_ms LIMIT 1

-- name: keys_by_visibility
-- For queues that are a small part of the store, or small: all their keys, sorted.
SELECT row_key FROM message INDEXED BY message_by_visibility
WHERE partition IN (SELECT value FROM json_each(?1)) AND row_key > ?2 AND row_key <= ?3
ORDER BY row_key LIMIT ?4

-- name: keys_of_group
-- Of one group, sorted.
SELECT row_key FROM message INDEXED BY message_by_group
WHERE partition IN (SELECT value FROM json_each(?1)) AND group_id = ?5
  AND row_key > ?2 AND row_key <= ?3
ORDER BY row_key LIMIT ?4

-- name: group_size
-- How many messages a group has, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM message INDEXED BY message_by_group
    WHERE partition IN (SELECT value FROM json_each(?1)) AND group_id = ?2 LIMIT ?3)

-- name: retired
SELECT count(*) FROM (
    SELECT 1 FROM message INDEXED BY message_by_visibility
    WHERE partition IN (SELECT value FROM json_each(?1)) AND visible_at_ms IS NULL LIMIT ?2)

-- name: invisible_keys
-- As above, for those that are invisible now: by their own time, or with all of their lane (?6).
SELECT row_key FROM (
    SELECT row_key FROM message INDEXED BY message_by_visibility
    WHERE partition IN (SELECT value FROM json_each(?1)) AND visible_at_ms > ?5
      AND row_key > ?2 AND row_key <= ?3
    UNION ALL
    SELECT row_key FROM message INDEXED BY message_by_visibility
    WHERE partition IN (SELECT value FROM json_each(?6)) AND row_key > ?2 AND row_key <= ?3)
ORDER BY row_key LIMIT ?4

-- name: expired_keys
-- What is retired, and of what has expired since the last sweep what is in these partitions (?7).
SELECT row_key FROM (
    SELECT row_key FROM message INDEXED BY message_by_visibility
    WHERE partition IN (SELECT value FROM json_each(?1)) AND visible_at_ms IS NULL
      AND row_key > ?2 AND row_key <= ?3
    UNION ALL
    SELECT row_key FROM message INDEXED BY message_by_expiry
    WHERE expires_at_ms >= ?5 AND expires_at_ms <= ?6 AND expires_at_ms < 253402300799000
      AND visible_at_ms IS NOT NULL AND row_key > ?2 AND row_key <= ?3
      AND partition & 1099511627775 IN (SELECT value FROM json_each(?7)))
ORDER BY row_key LIMIT ?4

-- name: keys_by_age
-- For queues that are a large part of the store: row by row.
SELECT row_key, partition & 1099511627775 FROM message NOT INDEXED
WHERE row_key > ?1 AND row_key <= ?2 ORDER BY row_key LIMIT ?3

-- name: rows_of_keys
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, {BODY},
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       iif(saved, (SELECT content FROM message_saved s WHERE s.row_key = message.row_key), NULL),
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
SELECT row_key, partition, expires_at_ms, visible_at_ms, phase, message_id, inserted_at_ms,
       dequeue_count, fence, since_ms, visible_since_ms, renewals, holder, session, detail
FROM message INDEXED BY message_by_expiry
-- Those that expire at the same moment as the last one retired are looked at once more.
WHERE expires_at_ms >= ?1 AND expires_at_ms <= ?2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
  AND partition NOT IN (SELECT partition FROM dropped_partition)
  -- What a claim hides does not expire, and what is staged has not begun to live.
  AND partition & 1099511627775 NOT IN (SELECT value FROM json_each(?4))
ORDER BY expires_at_ms, row_key LIMIT ?3

-- name: retire
-- A member of a claim leaves it.
UPDATE message SET visible_at_ms = NULL, phase = 0, partition = (partition >> 40) << 40 | ?2
WHERE row_key = ?1

-- name: remove_retired
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message INDEXED BY message_by_expiry
    WHERE expires_at_ms < ?1 AND expires_at_ms < 253402300799000 AND visible_at_ms IS NULL
      AND partition NOT IN (SELECT partition FROM dropped_partition)
    ORDER BY expires_at_ms, row_key LIMIT ?2)
RETURNING partition

-- name: dropped_partitions
SELECT partition FROM dropped_partition ORDER BY partition LIMIT ?

-- name: dropped_run
SELECT min(row_key), max(row_key), count(*) FROM (
    SELECT row_key FROM message INDEXED BY message_by_visibility WHERE partition = ?1 LIMIT ?2)

-- name: reap_run
-- Rows that follow each other: to look each of them up would take a tenth longer.
DELETE FROM message WHERE row_key BETWEEN ?1 AND ?2

-- name: reap
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message INDEXED BY message_by_visibility WHERE partition = ?1 LIMIT ?2)

-- name: forget_partition
DELETE FROM dropped_partition WHERE partition = ?

-- Sessions ---------------------------------------------------------------------------------------

-- name: load_sessions
SELECT session_id, content FROM session

-- name: keep_session
INSERT INTO session (session_id, content) VALUES (?1, ?2)
ON CONFLICT (session_id) DO UPDATE SET content = ?2

-- name: forget_session
DELETE FROM session WHERE session_id = ?

-- name: leases_of_session
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message INDEXED BY message_by_session
WHERE session = ?1 AND row_key > ?3 AND phase = 2 AND visible_at_ms > ?2 AND expires_at_ms > ?2
ORDER BY row_key LIMIT ?4

-- name: count_leases
SELECT partition, count(*) FROM message INDEXED BY message_by_session
WHERE session = ?1 AND phase = 2 AND visible_at_ms > ?2 AND expires_at_ms > ?2 GROUP BY partition

-- name: cancels_of_session
-- A property may have the same name; whoever asks looks again.
SELECT row_key FROM message INDEXED BY message_by_session
WHERE session = ? AND phase = 2 AND instr(detail, '"cancel":')

-- name: rows_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message WHERE row_key IN carray(?) AND visible_at_ms IS NOT NULL ORDER BY row_key

-- name: rows_to_report_on
-- As above, for what is told of them.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       x'', phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message WHERE row_key IN carray(?) AND visible_at_ms IS NOT NULL ORDER BY row_key

-- name: set_detail
UPDATE message SET detail = ?2 WHERE row_key = ?1

-- Staged sends -----------------------------------------------------------------------------------

-- name: get_transaction
SELECT state, created_at_ms, until_ms, rows, duplicates FROM staged_transaction
WHERE account = ? AND name = ?

-- name: list_transactions
SELECT name, state, created_at_ms, until_ms, rows, duplicates FROM staged_transaction
WHERE account = ?1 AND (?2 IS NULL OR state = ?2) ORDER BY name LIMIT ?3

-- name: due_transactions
SELECT account, name FROM staged_transaction INDEXED BY staged_transaction_by_end
WHERE until_ms <= ? ORDER BY until_ms, account, name LIMIT ?

-- name: keep_transaction
INSERT INTO staged_transaction (account, name, state, created_at_ms, until_ms, rows, duplicates)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (account, name) DO UPDATE SET state = ?3, until_ms = ?5, rows = ?6, duplicates = ?7

-- name: forget_transaction
DELETE FROM staged_transaction WHERE account = ? AND name = ?

-- name: get_parts
SELECT part, chunks FROM staged_part WHERE account = ? AND name = ? ORDER BY part

-- name: get_chunks
SELECT chunks FROM staged_part WHERE account = ? AND name = ? AND part = ?

-- name: keep_part
INSERT INTO staged_part (account, name, part, chunks) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (account, name, part) DO UPDATE SET chunks = ?4

-- name: forget_part
DELETE FROM staged_part WHERE account = ? AND name = ? AND part = ?

-- name: forget_parts
DELETE FROM staged_part WHERE account = ? AND name = ?

-- name: load_bound
SELECT account, name, queue, stream, number, token FROM staged_binding

-- name: keep_bound
INSERT INTO staged_binding (account, name, queue, stream, number, token)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (account, name, queue, stream, number) DO UPDATE SET token = ?6

-- name: forget_bound
DELETE FROM staged_binding
WHERE account = ? AND name = ? AND queue = ? AND stream = ? AND number = ?

-- name: keep_slot
INSERT INTO staged_slot (partition, account, name, part, queue, lanes, rows, keyed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (partition) DO UPDATE SET lanes = ?6, rows = ?7, keyed = ?8

-- name: forget_slot
DELETE FROM staged_slot WHERE partition = ?

-- name: keep_staged_keys
-- Those of rows that are published at ?2, the oldest row first; a key that is remembered stays with
-- the message that has used it. SQLite reads the escaped U+99999 as nothing, for it marks what is
-- invalid by that number (JSON_INVALID_CHAR in https://sqlite.org/src/file/src/json.c); so the
-- character itself takes the place of the escape.
INSERT INTO dedup_key (scope, key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms)
SELECT ?3, replace(detail, '\uda26\udd99', char(0x99999)) ->> '$.dedup_key', message_id, ?2,
       iif(expires_at_ms < 253402300799000, min(expires_at_ms + ?2 - inserted_at_ms, 253402300799000),
           expires_at_ms),
       visible_at_ms + ?2 - inserted_at_ms, ?4
FROM message INDEXED BY message_by_visibility
WHERE partition IN carray(?1) AND detail ->> '$.dedup_key' IS NOT NULL ORDER BY row_key
ON CONFLICT (scope, key) DO UPDATE
SET message_id = excluded.message_id, inserted_at_ms = excluded.inserted_at_ms,
    expires_at_ms = excluded.expires_at_ms, visible_at_ms = excluded.visible_at_ms,
    until_ms = excluded.until_ms
WHERE until_ms <= ?2

-- name: staged_duplicates
-- Rows whose key another message has used. CROSS says that the rows come first, whatever the planner
-- thinks of how many keys there are.
SELECT m.row_key FROM message m INDEXED BY message_by_visibility
CROSS JOIN dedup_key k ON k.scope = ?3 AND k.key =
    replace(m.detail, '\uda26\udd99', char(0x99999)) ->> '$.dedup_key'
WHERE m.partition IN carray(?1) AND k.until_ms > ?2 AND k.message_id <> m.message_id
ORDER BY m.row_key

-- name: cores_to_publish
-- As they will be once published at ?2.
SELECT message_id, ?2, iif(expires_at_ms < 253402300799000,
                           min(expires_at_ms + ?2 - inserted_at_ms, 253402300799000),
                           expires_at_ms),
       visible_at_ms + ?2 - inserted_at_ms, 0, 0, phase, ?2, 0, 0, partition, detail
FROM message INDEXED BY message_by_visibility
WHERE partition = ?1 ORDER BY visible_at_ms, row_key

-- name: runs_to_publish
-- The same in one row for each moment: what is the same in all of its messages, as in next_run.
SELECT visible_at_ms, CAST(group_concat(message_id, '') AS BLOB), max(detail IS NOT NULL),
       min(inserted_at_ms), max(inserted_at_ms), min(expires_at_ms), max(expires_at_ms),
       min(phase), max(phase)
FROM message INDEXED BY message_by_visibility WHERE partition = ? GROUP BY visible_at_ms

-- name: soon_to_publish
SELECT (visible_at_ms + ?2 - inserted_at_ms) / 1000, phase, count(*)
FROM message INDEXED BY message_by_visibility WHERE partition = ?1 GROUP BY 1, 2

-- name: publish_lane
-- What waits for a delay waits as long from now on, so the phase stays.
UPDATE message INDEXED BY message_by_visibility
SET partition = (partition >> 40) << 40 | ?3, inserted_at_ms = ?2, since_ms = ?2,
    visible_at_ms = visible_at_ms + ?2 - inserted_at_ms,
    expires_at_ms = iif(expires_at_ms < 253402300799000,
                        min(expires_at_ms + ?2 - inserted_at_ms, 253402300799000),
                        expires_at_ms)
WHERE partition = ?1

-- Keys of large bodies ---------------------------------------------------------------------------

-- name: unused_garbage
SELECT key FROM body_garbage
WHERE NOT EXISTS (SELECT 1 FROM message INDEXED BY message_by_body_key
                  WHERE body = CAST(body_garbage.key AS BLOB) AND place = 2)
ORDER BY key LIMIT ?

-- name: forget_unused_garbage
-- A key that a row refers to again will be garbage again.
DELETE FROM body_garbage
WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM message INDEXED BY message_by_body_key
                               WHERE body = CAST(?1 AS BLOB) AND place = 2)

-- Moves ------------------------------------------------------------------------------------------

-- name: whole_message
-- Messages and bodies as if there were no segments.
CREATE TEMP VIEW whole_message AS
SELECT row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count,
       fence, iif(place = 3, x'', body) AS body, phase, since_ms, visible_since_ms, renewals,
       holder, detail, iif(place = 3, 1, place) AS place, session, saved, group_id
FROM message

-- name: whole_message_body
CREATE TEMP VIEW whole_message_body AS
SELECT row_key, content FROM message_body
UNION ALL
SELECT row_key, {JOINED} FROM message {SEGMENTS} WHERE place = 3
