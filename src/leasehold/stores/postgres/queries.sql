The statements of the PostgreSQL store. Names, bounds and columns are those of the SQLite store,
because the same verbs use them; what differs is how PostgreSQL says it.

A row is found by its key or by when it is visible, and the planner must not take the index of the one
for the other, which seems as good while a table is almost empty: hence ``+ 0``, which leads to the
index with the same expression, or keeps from one.

-- name: load_meta
SELECT name, number, content FROM meta

-- name: set_meta
INSERT INTO meta (name, number, content) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET number = $2, content = $3

-- name: note_meta
-- For what other servers need not know at once.
INSERT INTO meta (name, number) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET number = excluded.number

-- name: load_queues
SELECT account, name, partition, metadata, policies, settings, created_at_ms,
       (SELECT coalesce(sum(number), 0)::bigint FROM counted WHERE partition = queue.partition),
       lanes, scope
FROM queue

-- name: insert_queue
INSERT INTO queue (account, name, partition, metadata, policies, settings, created_at_ms, lanes,
                   scope)
VALUES ($1, $2, $3, $4, '[]', $5, $6, $7, $8)

-- name: delete_queue
DELETE FROM queue WHERE account = $1 AND name = $2

-- name: drop_partition
INSERT INTO dropped_partition (partition) VALUES ($1)

-- name: move_queue
UPDATE queue SET partition = $1, lanes = $2 WHERE account = $3 AND name = $4

-- name: set_metadata
UPDATE queue SET metadata = $1 WHERE account = $2 AND name = $3

-- name: set_settings
UPDATE queue SET settings = $1 WHERE account = $2 AND name = $3

-- name: set_lanes
UPDATE queue SET lanes = $1 WHERE account = $2 AND name = $3

-- name: set_policies
UPDATE queue SET policies = $1 WHERE account = $2 AND name = $3

-- name: list_queues
-- Bounds of the names with a prefix: from the prefix to the prefix with a character behind it that
-- is above all that a name may contain.
SELECT name FROM queue
WHERE account = $1 AND name >= greatest($2, $3) AND name < $2 || '~'
ORDER BY name LIMIT $4

-- name: get_document
SELECT content FROM account_document WHERE account = $1 AND kind = $2

-- name: set_document
INSERT INTO account_document (account, kind, content) VALUES ($1, $2, $3)
ON CONFLICT (account, kind) DO UPDATE SET content = $3

-- name: put
-- Also for many rows at once; see many_rows.
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body, phase, since_ms, detail, place, group_id)
VALUES ($1, $2, $3, $4, $5, $6, 0, 0, $7, $8, $9, $10, $11, $12)

-- name: put_body
INSERT INTO message_body (row_key, content) VALUES ($1, $2)

-- name: replace_body
INSERT INTO message_body (row_key, content) VALUES ($1, $2)
ON CONFLICT (row_key) DO UPDATE SET content = $2

-- name: remove_body
DELETE FROM message_body WHERE row_key = $1

-- name: body_place
SELECT place, body FROM message WHERE row_key = $1

-- name: set_body
UPDATE message SET body = $2, place = $3 WHERE row_key = $1

-- name: keep_saved
INSERT INTO message_saved (row_key, content) VALUES ($1, $2)
ON CONFLICT (row_key) DO UPDATE SET content = $2

-- name: remove_saved
DELETE FROM message_saved WHERE row_key = $1

-- name: mark_saved
UPDATE message SET saved = $2 WHERE row_key = $1

-- name: keep_garbage
INSERT INTO body_garbage (key) VALUES ($1) ON CONFLICT DO NOTHING

-- name: read_garbage
SELECT key FROM body_garbage ORDER BY key LIMIT $1

-- name: forget_garbage
DELETE FROM body_garbage WHERE key = $1

-- name: some_bodies
SELECT body FROM message WHERE place = 2 LIMIT $1

-- name: known_body
SELECT 1 FROM message WHERE body = $1 AND place = 2 LIMIT 1

-- name: next_visible
-- Plan: message_by_visibility from its lower bound on, no sort.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s
                       WHERE s.row_key = message.row_key) END
FROM message
WHERE partition = $1 AND visible_at_ms >= $4 AND visible_at_ms <= $5 AND expires_at_ms > $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3

-- name: next_visible_to_take
-- What another server is about to take is passed over.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s
                       WHERE s.row_key = message.row_key) END
FROM message
WHERE partition = $1 AND visible_at_ms >= $4 AND visible_at_ms <= $5 AND expires_at_ms > $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3
FOR UPDATE SKIP LOCKED

-- name: next_visible_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE partition = $1 AND visible_at_ms >= $4 AND visible_at_ms <= $5 AND expires_at_ms > $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3

-- name: next_visible_with_sizes
-- The length of a body is known without reading it.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL,
       CASE place WHEN 0 THEN length(body)
            WHEN 1 THEN coalesce((SELECT length(content) FROM message_body b
                                  WHERE b.row_key = message.row_key), 0)
            ELSE coalesce((replace(detail, '\u0000', '\ufdd0')::json
                           #>> '{body_ref,size_bytes}')::bigint, 0) END
FROM message
WHERE partition = $1 AND visible_at_ms >= $4 AND visible_at_ms <= $5 AND expires_at_ms > $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3

-- name: group_heads
-- Of each of some groups the next that was never received, and the next that was.
SELECT name, row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = m.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s WHERE s.row_key = m.row_key) END
FROM unnest($2::text[]) AS g (name), LATERAL (
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = false
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT $4)
    UNION ALL
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT nullif($5, -1))) AS m

-- name: group_heads_to_take
-- To pass over what is locked would break the order.
SELECT name, row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = m.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s WHERE s.row_key = m.row_key) END
FROM unnest($2::text[]) AS g (name), LATERAL (
    SELECT * FROM (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = false
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT $4 FOR UPDATE) AS a
    UNION ALL
    SELECT * FROM (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT nullif($5, -1) FOR UPDATE) AS b) AS m

-- name: group_heads_without_bodies
SELECT name, row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms,
       visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM unnest($2::text[]) AS g (name), LATERAL (
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = false
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT $4)
    UNION ALL
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT nullif($5, -1))) AS m

-- name: group_heads_with_sizes
SELECT name, row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms,
       visible_since_ms, renewals, holder, detail, partition, session, NULL,
       CASE place WHEN 0 THEN length(body)
            WHEN 1 THEN coalesce((SELECT length(content) FROM message_body b
                                  WHERE b.row_key = m.row_key), 0)
            ELSE coalesce((replace(detail, '\u0000', '\ufdd0')::json
                           #>> '{body_ref,size_bytes}')::bigint, 0) END
FROM unnest($2::text[]) AS g (name), LATERAL (
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = false
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT $4)
    UNION ALL
    (SELECT * FROM message
     WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
       AND visible_at_ms <= $6 AND expires_at_ms > $3
     ORDER BY visible_at_ms, row_key LIMIT nullif($5, -1))) AS m

-- name: groups_held
-- What was received and is not visible: all, what is on leases, and when the first of it is free;
-- and how much was received and is visible.
SELECT name, count(*) FILTER (WHERE visible_at_ms > $3),
       count(*) FILTER (WHERE visible_at_ms > $3 AND phase = 2),
       min(least(visible_at_ms, expires_at_ms)) FILTER (WHERE visible_at_ms > $3),
       count(*) FILTER (WHERE visible_at_ms <= $3)
FROM unnest($2::text[]) AS g (name), LATERAL (
    SELECT phase, visible_at_ms, expires_at_ms FROM message
    WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
      AND visible_at_ms IS NOT NULL AND expires_at_ms > $3) AS m
GROUP BY name

-- name: group_held_rows
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE partition = $1 AND group_id = $2 AND (dequeue_count > 0) = true AND visible_at_ms > $3
  AND expires_at_ms > $3
ORDER BY visible_at_ms, row_key LIMIT $4

-- name: groups_members
SELECT name, count(*) FROM unnest($2::text[]) AS g (name)
JOIN message ON partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
GROUP BY name

-- name: lane_in_flight
-- How many messages of each group are on leases, among the first of what is not visible.
SELECT group_id, count(*) FROM (
    SELECT group_id, phase, expires_at_ms FROM message
    WHERE partition = $1 AND visible_at_ms > $2 ORDER BY visible_at_ms LIMIT $3) AS first
WHERE phase = 2 AND expires_at_ms > $2
GROUP BY group_id

-- name: lane_members
-- The same of members that a claim hides.
SELECT group_id, count(*) FROM (
    SELECT group_id FROM message WHERE partition = $1 LIMIT $2) AS first
GROUP BY group_id

-- name: groups_next
-- When the next of what is not visible is, of what was never received and of what was.
SELECT name,
       (SELECT min(visible_at_ms) FROM message
        WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = false
          AND visible_at_ms > $3),
       (SELECT min(visible_at_ms) FROM message
        WHERE partition = $1 AND group_id = g.name AND (dequeue_count > 0) = true
          AND visible_at_ms > $3)
FROM unnest($2::text[]) AS g (name)

-- name: group_rows
-- Of one group, received before or not, from a place on; what is retired has no place.
SELECT group_id, (dequeue_count > 0)::int, visible_at_ms, row_key, phase, expires_at_ms, 0
FROM message
WHERE partition = $1 AND group_id = $2 AND (dequeue_count > 0) = ($3 = 1)
  AND (visible_at_ms, row_key) > ($4, $5)
ORDER BY visible_at_ms, row_key LIMIT $6

-- name: group_rows_after
-- Of all groups whose names come later; what is retired comes last of each.
SELECT group_id, (dequeue_count > 0)::int, coalesce(visible_at_ms, 9223372036854775807), row_key,
       phase, expires_at_ms, (visible_at_ms IS NULL)::int
FROM message
WHERE partition = $1 AND group_id > $2
ORDER BY group_id, (dequeue_count > 0), visible_at_ms, row_key LIMIT $3

-- name: group_rates
SELECT group_id, full_at_us FROM group_rate WHERE scope = $1 AND group_id = ANY ($2::text[])

-- name: keep_rate
INSERT INTO group_rate (scope, group_id, full_at_us) VALUES ($1, $2, $3)
ON CONFLICT (scope, group_id) DO UPDATE SET full_at_us = $3

-- name: forget_rates
DELETE FROM group_rate WHERE scope = $1

-- name: load_halts
SELECT scope, group_id, since_ms, message_id, reason FROM group_halt

-- name: keep_halt
INSERT INTO group_halt (scope, group_id, since_ms, message_id, reason)
VALUES ($1, $2, $3, $4, $5)

-- name: drop_halt
DELETE FROM group_halt WHERE scope = $1 AND group_id = $2

-- name: forget_halts
DELETE FROM group_halt WHERE scope = $1

-- name: load_holds
SELECT scope, group_id, session, fence, since_ms FROM group_hold WHERE session IS NOT NULL

-- name: holds_of_session
SELECT scope, group_id FROM group_hold WHERE session = $1 ORDER BY scope, group_id

-- name: keep_hold
INSERT INTO group_hold (scope, group_id, session, fence, since_ms, state)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (scope, group_id) DO UPDATE SET session = $3, fence = $4, since_ms = $5

-- name: end_hold
UPDATE group_hold SET session = NULL WHERE scope = $1 AND group_id = $2

-- name: forget_empty_hold
DELETE FROM group_hold WHERE scope = $1 AND group_id = $2 AND session IS NULL AND length(state) = 0

-- name: group_state
SELECT state FROM group_hold WHERE scope = $1 AND group_id = $2

-- name: save_group_state
UPDATE group_hold SET state = $3 WHERE scope = $1 AND group_id = $2

-- name: forget_holds
DELETE FROM group_hold WHERE scope = $1

-- name: groups_of_lane
-- Each group with the place of its first message: a few looks into the index for each, however many
-- messages it has.
WITH RECURSIVE found (name) AS (
    (SELECT group_id FROM message WHERE partition = $1 AND group_id IS NOT NULL
     ORDER BY group_id LIMIT 1)
    UNION ALL
    SELECT (SELECT group_id FROM message WHERE partition = $1 AND group_id > name
            ORDER BY group_id LIMIT 1)
    FROM found WHERE name IS NOT NULL)
SELECT name, first.visible_at_ms, first.row_key
FROM found CROSS JOIN (VALUES (false), (true)) AS kinds (received)
CROSS JOIN LATERAL (
    SELECT visible_at_ms, row_key FROM message
    WHERE partition = $1 AND group_id = name AND (dequeue_count > 0) = received
      AND visible_at_ms IS NOT NULL
    ORDER BY visible_at_ms, row_key LIMIT 1) AS first
WHERE name IS NOT NULL

-- name: groups_since
-- Of which something became visible since a moment, by the first of that.
SELECT group_id FROM message
WHERE partition = $1 AND visible_at_ms > $2 AND visible_at_ms <= $3
GROUP BY group_id ORDER BY min(visible_at_ms), min(row_key)

-- name: try_lock_groups
-- One lock for some groups each: PostgreSQL has room for 6,400 locks, and a claim may take more groups.
SELECT name FROM unnest($2::text[]) AS g (name)
WHERE pg_try_advisory_xact_lock(hashtextextended((hashtext(name) & 1023)::text, $1))

-- name: bytes_of_lane
SELECT coalesce(sum(CASE place WHEN 0 THEN length(body)
            WHEN 1 THEN coalesce((SELECT length(content) FROM message_body b
                                  WHERE b.row_key = message.row_key), 0)
            ELSE coalesce((replace(detail, '\u0000', '\ufdd0')::json
                           #>> '{body_ref,size_bytes}')::bigint, 0) END), 0)::bigint
FROM message WHERE partition = $1

-- name: members
-- Of one lane of a claim, in their order, from a moment on. Who reads a claim is not shown what was
-- saved.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE partition = $1 AND visible_at_ms >= $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3 OFFSET $4

-- name: members_of_moment
-- The rest of a moment. A pair of moment and row to compare with would walk over all of the moment
-- again: messages published together share one.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE partition = $1 AND visible_at_ms = $2 AND row_key + 0 > $3
ORDER BY row_key + 0 LIMIT $4

-- name: members_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE partition = $1 AND visible_at_ms >= $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3 OFFSET $4

-- name: member_columns
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       detail, partition
FROM message
WHERE partition = $1 AND visible_at_ms >= $2
ORDER BY visible_at_ms, row_key + 0 LIMIT $3 OFFSET $4

-- name: member_columns_of_moment
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       detail, partition
FROM message
WHERE partition = $1 AND visible_at_ms = $2 AND row_key + 0 > $3
ORDER BY row_key + 0 LIMIT $4

-- name: member_place
-- Of one member of several lanes that are read as one.
SELECT visible_at_ms, row_key FROM message
WHERE partition = ANY ($1::bigint[]) AND visible_at_ms IS NOT NULL
ORDER BY visible_at_ms, row_key + 0 LIMIT 1 OFFSET $2

-- name: member_cores
-- A member is visible when its claim says so ($2); its own time is its place.
SELECT message_id, inserted_at_ms, expires_at_ms, $2, dequeue_count, fence, 2, since_ms,
       visible_since_ms, 0, partition, detail
FROM message
WHERE partition = $1 AND visible_at_ms IS NOT NULL ORDER BY visible_at_ms, row_key + 0

-- name: cores_of_lane
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, phase,
       since_ms, visible_since_ms, renewals, partition, detail
FROM message
WHERE partition = $1 AND visible_at_ms IS NOT NULL ORDER BY visible_at_ms, row_key + 0

-- name: cores_of_keys
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, phase,
       since_ms, visible_since_ms, renewals, partition, detail
FROM message WHERE row_key = ANY ($1::bigint[]) ORDER BY row_key

-- name: count_lane
SELECT count(*) FROM message
WHERE partition = $1 AND visible_at_ms IS NOT NULL

-- name: first_expiry
SELECT min(expires_at_ms) FROM message WHERE partition = $1

-- name: soon_in_lane
-- What the timeline has counted of the messages that were moved to a lane.
SELECT visible_at_ms / 1000, phase, count(*) FROM message
WHERE partition = $1 AND visible_at_ms >= $2 GROUP BY 1, 2

-- name: claim_many
-- The row goes on saying when it was visible, which is its place in the claim.
UPDATE message SET partition = (partition >> 40) << 40 | $1, dequeue_count = dequeue_count + 1,
                   fence = fence + 1, phase = 2, since_ms = $2, visible_since_ms = visible_at_ms,
                   renewals = 0, holder = $3
WHERE row_key = ANY ($4::bigint[])

-- name: claim_again
-- As above for a message that was received before. Its body and its time to live stay.
UPDATE message SET partition = (partition >> 40) << 40 | $2, visible_at_ms = $3, detail = $5,
                   dequeue_count = dequeue_count + 1, fence = fence + 1, phase = 2, since_ms = $6,
                   visible_since_ms = $4, renewals = 0, holder = $7, session = NULL
WHERE row_key = $1

-- name: set_place
-- Of a member that was visible before, in its group.
UPDATE message SET visible_at_ms = $2 WHERE row_key = $1

-- name: return_many
-- Members that are alike: claimed at the same moment, and never received before.
UPDATE message SET partition = (partition >> 40) << 40 | $1, visible_at_ms = $2, since_ms = $2,
                   fence = fence + 1, phase = 3, detail = $3
WHERE row_key = ANY ($4::bigint[])

-- name: unclaim_many
UPDATE message SET partition = (partition >> 40) << 40 | $1, visible_at_ms = $2
WHERE row_key = ANY ($3::bigint[])

-- name: load_streams
SELECT stream_id, account, queue, name, token, last_settled, attached_at_ms, settled_with
FROM stream

-- name: keep_stream
INSERT INTO stream (account, queue, name, token, last_settled, attached_at_ms)
VALUES ($1, $2, $3, $4, $5, $6) RETURNING stream_id

-- name: set_stream
UPDATE stream SET token = $2, last_settled = $3, attached_at_ms = $4, settled_with = $5
WHERE stream_id = $1

-- name: drop_stream
DELETE FROM stream WHERE stream_id = $1

-- name: load_claims
SELECT partition, stream_id, lanes, content FROM claim

-- name: keep_claim
INSERT INTO claim (partition, stream_id, lanes, content) VALUES ($1, $2, $3, $4)
ON CONFLICT (partition) DO UPDATE SET lanes = $3, content = $4

-- name: drop_claim
DELETE FROM claim WHERE partition = $1

-- name: keep_exemption
INSERT INTO claim_exemption (partition, row_key, content) VALUES ($1, $2, $3)
ON CONFLICT (partition, row_key) DO UPDATE SET content = $3

-- name: known_exemptions
SELECT row_key FROM claim_exemption WHERE partition = $1 AND row_key = ANY ($2::bigint[])

-- name: get_exemptions
SELECT row_key, content FROM claim_exemption WHERE partition = $1 ORDER BY row_key

-- name: forget_exemptions
DELETE FROM claim_exemption WHERE partition = $1

-- name: load_slots
SELECT partition, account, name, part, queue, lanes, rows, keyed FROM staged_slot

-- name: last_event_batch
SELECT seq FROM event_batch ORDER BY seq DESC LIMIT 1

-- name: first_event_batch
SELECT seq, at_ms FROM event_batch ORDER BY seq LIMIT 1

-- name: log_bytes
SELECT coalesce(sum(size), 0)::bigint FROM event_batch WHERE seq > $1

-- name: store_bytes
SELECT pg_database_size(current_database())

-- name: keep_events
INSERT INTO event_batch (seq, at_ms, events, size, content)
VALUES (nextval('event_seq'), $1, $2, $3, $4) RETURNING seq

-- name: read_events
SELECT seq, at_ms, content FROM event_batch WHERE seq > $1 ORDER BY seq

-- name: read_events_back
SELECT seq, at_ms, content FROM event_batch WHERE seq <= $1 ORDER BY seq DESC LIMIT $2

-- name: oldest_events
SELECT seq, size FROM event_batch WHERE seq <= $1 ORDER BY seq LIMIT $2

-- name: trim_events
DELETE FROM event_batch WHERE seq <= $1

-- name: keep_note
INSERT INTO note (name, content) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET content = $2

-- name: read_note
SELECT content FROM note WHERE name = $1

-- name: lease
UPDATE message SET visible_at_ms = $1, dequeue_count = $2, fence = $3, phase = 2, since_ms = $4,
                   visible_since_ms = visible_at_ms, renewals = 0, holder = $5
WHERE row_key = $6

-- name: lease_many
-- First deliveries of one receive.
UPDATE message SET visible_at_ms = $1, dequeue_count = dequeue_count + 1, fence = fence + 1,
                   phase = 2, since_ms = $2, visible_since_ms = visible_at_ms, renewals = 0,
                   holder = $3
WHERE row_key = ANY ($4::bigint[])

-- name: lease_again
UPDATE message SET visible_at_ms = $1, dequeue_count = $2, fence = $3, phase = 2, since_ms = $4,
                   visible_since_ms = visible_at_ms, renewals = 0, holder = $5, detail = $7,
                   session = $8
WHERE row_key = $6

-- name: get_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence, CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s
                       WHERE s.row_key = message.row_key) END
FROM message
WHERE row_key = $1 AND visible_at_ms + 0 IS NOT NULL
FOR UPDATE

-- name: find_message
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s
                       WHERE s.row_key = message.row_key) END,
       visible_at_ms IS NULL
FROM message WHERE row_key = $1

-- name: renew
UPDATE message SET visible_at_ms = $1, fence = $2, phase = $4, since_ms = $5, renewals = $6
WHERE row_key = $3

-- name: rewrite
-- Everything that can change but the body and what was saved. The lane changes with the priority,
-- or when the message moves to another queue.
UPDATE message SET visible_at_ms = $1, fence = $2, phase = $4, since_ms = $5, renewals = $6,
                   detail = $7, partition = $8, expires_at_ms = $9, dequeue_count = $10,
                   visible_since_ms = $11, holder = $12, session = $13
WHERE row_key = $3

-- name: complete
-- The receipt is checked in the statement that acts. The last bound is now for queues under the
-- strict rule and -1 otherwise; retired rows, where it is compared with NULL, never match.
DELETE FROM message
WHERE row_key = $1 AND partition & 1099511627775 = $2 AND fence = $3 AND message_id = $4
  AND expires_at_ms + 0 > $5 AND visible_at_ms + 0 > $6
RETURNING row_key, visible_at_ms, phase, inserted_at_ms, expires_at_ms, dequeue_count, since_ms,
          visible_since_ms, renewals, holder, partition, session, detail

-- name: to_complete
-- For runs of completes: what the receipts are checked against, within the transaction that acts.
SELECT row_key, partition, fence, message_id, expires_at_ms, visible_at_ms, phase, inserted_at_ms,
       dequeue_count, since_ms, visible_since_ms, renewals, holder, session, detail
FROM message WHERE row_key = ANY ($1::bigint[]) AND visible_at_ms + 0 IS NOT NULL
ORDER BY row_key FOR UPDATE

-- name: remove_many
DELETE FROM message WHERE row_key = ANY ($1::bigint[])

-- name: remove
DELETE FROM message WHERE row_key = $1

-- name: find_key
SELECT message_id, inserted_at_ms, expires_at_ms, visible_at_ms FROM dedup_key
WHERE scope = $1 AND key = $2 AND until_ms > $3

-- name: keep_key
INSERT INTO dedup_key (scope, key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (scope, key) DO UPDATE
SET message_id = $3, inserted_at_ms = $4, expires_at_ms = $5, visible_at_ms = $6, until_ms = $7

-- name: forget_keys
DELETE FROM dedup_key WHERE (scope, key) IN (
    SELECT scope, key FROM dedup_key
    WHERE until_ms <= $1 ORDER BY until_ms LIMIT $2)

-- name: timeline
SELECT visible_at_ms / 1000, phase, count(*) FROM message
WHERE partition = $1 AND visible_at_ms >= $2 GROUP BY 1, 2

-- name: this_second
-- What becomes visible later in the second that has begun.
SELECT phase, count(*) FROM message
WHERE partition = $1 AND visible_at_ms > $2 AND visible_at_ms < $3 GROUP BY phase

-- name: not_yet_retired
-- The limit is on the rows looked at, whichever queue they are of.
SELECT visible_at_ms, phase, partition & 1099511627775 FROM message
WHERE expires_at_ms >= $1 AND expires_at_ms <= $2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
LIMIT $3

-- name: oldest_in_phase
SELECT since_ms, visible_at_ms, expires_at_ms
FROM message
WHERE partition = $1 AND phase = $2 AND since_ms >= $3 AND visible_at_ms > $6
ORDER BY since_ms LIMIT $4 OFFSET $5

-- name: to_catch_up
-- What was put or given back without a delay, at a time that is to come once more.
SELECT row_key FROM message
WHERE partition = $1 AND visible_at_ms > $2 AND visible_at_ms <= $3 AND since_ms = visible_at_ms
ORDER BY visible_at_ms, row_key LIMIT $4

-- name: next_invisible
SELECT visible_at_ms FROM message
WHERE partition = $1 AND visible_at_ms > $2 AND expires_at_ms > visible_at_ms
ORDER BY visible_at_ms LIMIT 1

-- name: keys_by_visibility
-- For queues that are a small part of the store, or small: all their keys, sorted.
SELECT row_key FROM message
WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND row_key > $2 AND row_key <= $3
ORDER BY row_key LIMIT $4

-- name: keys_of_group
-- Of one group, sorted.
SELECT row_key FROM message
WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND group_id = $5
  AND row_key > $2 AND row_key <= $3
ORDER BY row_key LIMIT $4

-- name: group_size
-- How many messages a group has, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM message
    WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND group_id = $2 LIMIT $3) AS found

-- name: retired
SELECT count(*) FROM (
    SELECT 1 FROM message
    WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND visible_at_ms IS NULL LIMIT $2) AS found

-- name: invisible_keys
-- As above, for those that are invisible now: by their own time, or with all of their lane ($6).
SELECT row_key FROM (
    SELECT row_key FROM message
    WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND visible_at_ms > $5
      AND row_key > $2 AND row_key <= $3
    UNION ALL
    SELECT row_key FROM message
    WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($6::json))) AND row_key > $2 AND row_key <= $3) AS found
ORDER BY row_key LIMIT $4

-- name: expired_keys
-- What is retired, and of what has expired since the last sweep what is in these partitions ($7).
SELECT row_key FROM (
    SELECT row_key FROM message
    WHERE partition = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) AND visible_at_ms IS NULL
      AND row_key > $2 AND row_key <= $3
    UNION ALL
    SELECT row_key FROM message
    WHERE expires_at_ms >= $5 AND expires_at_ms <= $6 AND expires_at_ms < 253402300799000
      AND visible_at_ms IS NOT NULL AND row_key > $2 AND row_key <= $3
      AND partition & 1099511627775 = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($7::json)))) AS found
ORDER BY row_key LIMIT $4

-- name: keys_by_age
-- For queues that are a large part of the store: row by row.
SELECT row_key, partition & 1099511627775 FROM message
WHERE row_key > $1 AND row_key <= $2 ORDER BY row_key LIMIT $3

-- name: rows_of_keys
SELECT row_key, message_id, inserted_at_ms, expires_at_ms,
       coalesce(visible_at_ms, expires_at_ms), dequeue_count, fence, CASE place WHEN 0 THEN body ELSE coalesce(
           (SELECT content FROM message_body b WHERE b.row_key = message.row_key), ''::bytea) END,
       phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session,
       CASE WHEN saved THEN (SELECT content FROM message_saved s
                       WHERE s.row_key = message.row_key) END,
       visible_at_ms IS NULL
FROM message WHERE row_key = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text($1::json))) ORDER BY row_key

-- name: keep_job
INSERT INTO job (job_id, account, queue, over, created_at_ms, updated_at_ms, content)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (job_id) DO UPDATE SET over = $4, updated_at_ms = $6, content = $7

-- name: get_job
SELECT content FROM job WHERE job_id = $1

-- name: list_jobs
SELECT content FROM job
WHERE CASE WHEN $1::text IS NULL THEN NOT over ELSE account = $1 END AND ($2::text IS NULL OR queue = $2)
ORDER BY created_at_ms DESC, job_id LIMIT $3

-- name: forget_jobs
DELETE FROM job WHERE over AND updated_at_ms <= $1

-- name: expired
SELECT row_key, partition, expires_at_ms, visible_at_ms, phase, message_id, inserted_at_ms,
       dequeue_count, fence, since_ms, visible_since_ms, renewals, holder, session, detail
FROM message
-- Those that expire at the same moment as the last one retired are looked at once more.
WHERE expires_at_ms >= $1 AND expires_at_ms <= $2 AND expires_at_ms < 253402300799000
  AND visible_at_ms IS NOT NULL
  AND partition NOT IN (SELECT partition FROM dropped_partition)
  -- What a claim hides does not expire, and what is staged has not begun to live.
  AND partition & 1099511627775 <> ALL (ARRAY(SELECT value::bigint
                                     FROM json_array_elements_text($4::json)))
ORDER BY expires_at_ms, row_key LIMIT $3

-- name: retire
-- A member of a claim leaves it.
UPDATE message SET visible_at_ms = NULL, phase = 0, partition = (partition >> 40) << 40 | $2
WHERE row_key = $1

-- name: remove_retired
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message
    WHERE expires_at_ms < $1 AND expires_at_ms < 253402300799000 AND visible_at_ms IS NULL
      AND partition NOT IN (SELECT partition FROM dropped_partition)
    ORDER BY expires_at_ms, row_key LIMIT $2)
RETURNING partition

-- name: dropped_partitions
SELECT partition FROM dropped_partition ORDER BY partition LIMIT $1

-- name: reap
DELETE FROM message WHERE row_key IN (
    SELECT row_key FROM message WHERE partition = $1 LIMIT $2)

-- name: forget_partition
DELETE FROM dropped_partition WHERE partition = $1

-- Sessions ---------------------------------------------------------------------------------------

-- name: load_sessions
SELECT session_id, content FROM session

-- name: keep_session
INSERT INTO session (session_id, content) VALUES ($1, $2)
ON CONFLICT (session_id) DO UPDATE SET content = $2

-- name: forget_session
DELETE FROM session WHERE session_id = $1

-- name: leases_of_session
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message
WHERE session = $1 AND row_key > $3 AND phase = 2 AND visible_at_ms > $2 AND expires_at_ms > $2
ORDER BY row_key LIMIT $4

-- name: count_leases
SELECT partition, count(*) FROM message
WHERE session = $1 AND phase = 2 AND visible_at_ms > $2 AND expires_at_ms > $2 GROUP BY partition

-- name: cancels_of_session
-- A property may have the same name; whoever asks looks again.
SELECT row_key FROM message
WHERE session = $1 AND phase = 2 AND position('"cancel":' IN detail) > 0

-- name: rows_without_bodies
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message WHERE row_key = ANY ($1::bigint[]) AND visible_at_ms + 0 IS NOT NULL ORDER BY row_key

-- name: rows_to_report_on
-- As above. What is told of them goes into ``detail``, which is written as a whole: another server
-- must not write it in between.
SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, dequeue_count, fence,
       ''::bytea, phase, since_ms, visible_since_ms, renewals, holder, detail, partition, session, NULL
FROM message WHERE row_key = ANY ($1::bigint[]) AND visible_at_ms + 0 IS NOT NULL ORDER BY row_key
FOR UPDATE

-- name: set_detail
UPDATE message SET detail = $2 WHERE row_key = $1

-- Staged sends -----------------------------------------------------------------------------------

-- name: get_transaction
SELECT state, created_at_ms, until_ms, rows, duplicates FROM staged_transaction
WHERE account = $1 AND name = $2

-- name: list_transactions
SELECT name, state, created_at_ms, until_ms, rows, duplicates FROM staged_transaction
WHERE account = $1 AND ($2::text IS NULL OR state = $2) ORDER BY name LIMIT $3

-- name: due_transactions
SELECT account, name FROM staged_transaction
WHERE until_ms <= $1 ORDER BY until_ms, account, name LIMIT $2

-- name: keep_transaction
INSERT INTO staged_transaction (account, name, state, created_at_ms, until_ms, rows, duplicates)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (account, name) DO UPDATE SET state = $3, until_ms = $5, rows = $6, duplicates = $7

-- name: forget_transaction
DELETE FROM staged_transaction WHERE account = $1 AND name = $2

-- name: get_parts
SELECT part, chunks FROM staged_part WHERE account = $1 AND name = $2 ORDER BY part

-- name: get_chunks
SELECT chunks FROM staged_part WHERE account = $1 AND name = $2 AND part = $3

-- name: keep_part
INSERT INTO staged_part (account, name, part, chunks) VALUES ($1, $2, $3, $4)
ON CONFLICT (account, name, part) DO UPDATE SET chunks = $4

-- name: forget_part
DELETE FROM staged_part WHERE account = $1 AND name = $2 AND part = $3

-- name: forget_parts
DELETE FROM staged_part WHERE account = $1 AND name = $2

-- name: load_bound
SELECT account, name, queue, stream, number, token FROM staged_binding

-- name: keep_bound
INSERT INTO staged_binding (account, name, queue, stream, number, token)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (account, name, queue, stream, number) DO UPDATE SET token = $6

-- name: forget_bound
DELETE FROM staged_binding
WHERE account = $1 AND name = $2 AND queue = $3 AND stream = $4 AND number = $5

-- name: keep_slot
INSERT INTO staged_slot (partition, account, name, part, queue, lanes, rows, keyed)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (partition) DO UPDATE SET lanes = $6, rows = $7, keyed = $8

-- name: forget_slot
DELETE FROM staged_slot WHERE partition = $1

-- name: keep_staged_keys
-- Those of rows that are published at $2, the oldest row first; a key that is remembered stays with
-- the message that has used it. A key in JSON becomes the text that a bound one is kept as: what
-- stands for NUL and for U+FFFF (see texts.py) takes their place where they are escaped, which is
-- where an even number of backslashes is in front.
INSERT INTO dedup_key (scope, key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms)
SELECT DISTINCT ON (key) $3, key, message_id, $2,
       CASE WHEN expires_at_ms < 253402300799000
            THEN least(expires_at_ms + $2 - inserted_at_ms, 253402300799000)
            ELSE expires_at_ms END,
       visible_at_ms + $2 - inserted_at_ms, $4
FROM (SELECT row_key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
             (CASE WHEN position('\u0000' IN detail) + position('\uffff' IN detail) > 0
              THEN regexp_replace(detail, '(?<!\\)((?:\\\\)*)\\u(0000|ffff)', '\1\\uffff\2', 'g')
              ELSE detail END)::json ->> 'dedup_key' AS key
      FROM message
      WHERE partition = ANY ($1::bigint[]) AND position('"dedup_key":' IN detail) > 0
      OFFSET 0) AS staged
WHERE key IS NOT NULL
ORDER BY key, row_key
ON CONFLICT (scope, key) DO UPDATE
SET message_id = excluded.message_id, inserted_at_ms = excluded.inserted_at_ms,
    expires_at_ms = excluded.expires_at_ms, visible_at_ms = excluded.visible_at_ms,
    until_ms = excluded.until_ms
WHERE dedup_key.until_ms <= $2

-- name: staged_duplicates
-- Rows whose key another message has used. Each key is read once, and then looked up.
WITH staged AS MATERIALIZED (
    SELECT row_key, message_id,
           (CASE WHEN position('\u0000' IN detail) + position('\uffff' IN detail) > 0
            THEN regexp_replace(detail, '(?<!\\)((?:\\\\)*)\\u(0000|ffff)', '\1\\uffff\2', 'g')
            ELSE detail END)::json ->> 'dedup_key' AS key
    FROM message
    WHERE partition = ANY ($1::bigint[]) AND position('"dedup_key":' IN detail) > 0)
SELECT row_key FROM staged
WHERE EXISTS (SELECT FROM dedup_key k
              WHERE k.scope = $3 AND k.key = staged.key AND k.until_ms > $2
                AND k.message_id <> staged.message_id)
ORDER BY row_key

-- name: cores_to_publish
-- As they will be once published at $2.
SELECT message_id, $2::bigint, CASE WHEN expires_at_ms < 253402300799000
                           THEN least(expires_at_ms + $2 - inserted_at_ms, 253402300799000)
                           ELSE expires_at_ms END,
       visible_at_ms + $2 - inserted_at_ms, 0, 0, phase, $2::bigint, 0, 0, partition, detail
FROM message
WHERE partition = $1 ORDER BY visible_at_ms, row_key + 0

-- name: soon_to_publish
SELECT (visible_at_ms + $2 - inserted_at_ms) / 1000, phase, count(*)
FROM message WHERE partition = $1 GROUP BY 1, 2

-- name: publish_lane
-- What waits for a delay waits as long from now on, so the phase stays.
UPDATE message
SET partition = (partition >> 40) << 40 | $3, inserted_at_ms = $2, since_ms = $2,
    visible_at_ms = visible_at_ms + $2 - inserted_at_ms,
    expires_at_ms = CASE WHEN expires_at_ms < 253402300799000
                         THEN least(expires_at_ms + $2 - inserted_at_ms, 253402300799000)
                         ELSE expires_at_ms END
WHERE partition = $1

-- Keys of large bodies ---------------------------------------------------------------------------

-- name: unused_garbage
SELECT key FROM body_garbage
WHERE NOT EXISTS (SELECT 1 FROM message
                  WHERE body = convert_to(body_garbage.key, 'UTF8') AND place = 2)
ORDER BY key LIMIT $1

-- name: ends_of_holds
-- Each backup that is under way has a row.
SELECT number FROM meta WHERE name LIKE 'bodies_held:%'

-- name: forget_unused_garbage
-- A key that a row refers to again will be garbage again.
DELETE FROM body_garbage
WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM message
                               WHERE body = convert_to($1, 'UTF8') AND place = 2)

-- Runs: as the statement of the name before ``_all``, with a column of values for each bound ---------

-- name: put_all
INSERT INTO message (row_key, partition, message_id, inserted_at_ms, expires_at_ms, visible_at_ms,
                     dequeue_count, fence, body, phase, since_ms, detail, place, group_id)
SELECT k, p, i, t, e, v, 0, 0, b, f, s, d, l, g
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[],
            $7::bytea[], $8::smallint[], $9::bigint[], $10::text[], $11::smallint[], $12::text[])
     AS r (k, p, i, t, e, v, b, f, s, d, l, g)

-- name: put_body_all
INSERT INTO message_body (row_key, content)
SELECT k, b FROM unnest($1::bigint[], $2::bytea[]) AS r (k, b)

-- name: lease_all
UPDATE message SET visible_at_ms = r.v, dequeue_count = r.c, fence = r.f, phase = 2, since_ms = r.s,
                   visible_since_ms = message.visible_at_ms, renewals = 0, holder = r.h
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])
     AS r (v, c, f, s, h, k)
WHERE row_key = r.k

-- name: complete_run
-- A run of completes: keys, what each row must be (id, fence and partition), now, and the keys of
-- those whose lease must not have lapsed. A join with the run would read the whole index when the
-- planner takes the table for empty.
DELETE FROM message
WHERE row_key = ANY ($1::bigint[])
  AND message_id || int8send(fence) || int8send(partition & 1099511627775)
      = ($2::bytea[])[array_position($1::bigint[], row_key)]
  AND expires_at_ms + 0 > $3 AND visible_at_ms + 0 IS NOT NULL
  AND (visible_at_ms + 0 > $3 OR row_key <> ALL ($4::bigint[]))
RETURNING row_key, visible_at_ms, phase, inserted_at_ms, expires_at_ms, dequeue_count, since_ms,
          visible_since_ms, renewals, holder, partition, session, detail

-- name: retire_all
UPDATE message SET visible_at_ms = NULL, phase = 0, partition = (partition >> 40) << 40 | r.p
FROM unnest($1::bigint[], $2::bigint[]) AS r (k, p) WHERE row_key = r.k

-- name: drop_partition_all
INSERT INTO dropped_partition (partition) SELECT unnest($1::bigint[])

-- name: keep_exemption_all
INSERT INTO claim_exemption (partition, row_key, content)
SELECT p, k, c FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS r (p, k, c)
ON CONFLICT (partition, row_key) DO UPDATE SET content = excluded.content

-- name: set_detail_all
UPDATE message SET detail = r.d FROM unnest($1::bigint[], $2::text[]) AS r (k, d)
WHERE row_key = r.k

-- name: claim_again_all
UPDATE message SET partition = (message.partition >> 40) << 40 | r.p, visible_at_ms = r.v,
                   detail = r.d, dequeue_count = dequeue_count + 1, fence = fence + 1, phase = 2,
                   since_ms = r.s, visible_since_ms = r.vs, renewals = 0, holder = r.h,
                   session = NULL
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[],
            $7::text[]) AS r (k, p, v, vs, d, s, h)
WHERE row_key = r.k

-- name: set_place_all
UPDATE message SET visible_at_ms = r.v FROM unnest($1::bigint[], $2::bigint[]) AS r (k, v)
WHERE row_key = r.k

-- name: rewrite_all
UPDATE message SET visible_at_ms = r.v, fence = r.f, phase = r.ph, since_ms = r.s, renewals = r.n,
                   detail = r.d, partition = r.p, expires_at_ms = r.e, dequeue_count = r.c,
                   visible_since_ms = r.vs, holder = r.h, session = r.se
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[],
            $7::text[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[],
            $13::text[]) AS r (v, f, k, ph, s, n, d, p, e, c, vs, h, se)
WHERE row_key = r.k

-- Many servers ------------------------------------------------------------------------------------

-- name: share
LOCK TABLE change IN ROW SHARE MODE

-- name: exclude
LOCK TABLE change IN EXCLUSIVE MODE

-- name: version
SELECT version, waits, clock_us(), correction_us, generation FROM change

-- name: raise_version
UPDATE change SET version = version + 1 RETURNING version

-- name: take_block
SELECT nextval('row_key_block')

-- name: add_server
INSERT INTO server (name, started_at_ms, seen_at_ms) VALUES ($1, $2, $2) RETURNING slot

-- name: add_counts
INSERT INTO counted (partition, slot, number)
SELECT p, $1, n FROM unnest($2::bigint[], $3::bigint[]) AS r (p, n) ORDER BY p
ON CONFLICT (partition, slot) DO UPDATE SET number = counted.number + excluded.number

-- name: keep_events_and_counts
WITH added AS (
    INSERT INTO counted (partition, slot, number)
    SELECT p, $5, n FROM unnest($6::bigint[], $7::bigint[]) AS r (p, n) ORDER BY p
    ON CONFLICT (partition, slot) DO UPDATE SET number = counted.number + excluded.number
)
INSERT INTO event_batch (seq, at_ms, events, size, content)
VALUES (nextval('event_seq'), $1, $2, $3, $4) RETURNING seq

-- name: forget_counts
DELETE FROM counted WHERE partition = ANY (ARRAY[$1, -$1])

-- name: forget_retired_counts
DELETE FROM counted WHERE partition < 0

-- name: count_retired
-- Of a partition's number with a minus the expired messages that are set aside, not removed yet.
INSERT INTO counted (partition, slot, number)
SELECT -(partition & 1099511627775), 0, count(*) FROM message
WHERE visible_at_ms IS NULL AND expires_at_ms < 253402300799000
  AND partition NOT IN (SELECT partition FROM dropped_partition)
GROUP BY 1

-- name: read_counts
SELECT partition, sum(number)::bigint FROM counted WHERE partition = ANY ($1::bigint[]) GROUP BY 1

-- name: lock_keys
-- Two servers must not both find that a deduplication key is new.
SELECT count(pg_advisory_xact_lock(hash)) FROM (
    SELECT hashtextextended(k, s) AS hash
    FROM unnest($1::bigint[], $2::text[]) AS r (s, k) ORDER BY 1) AS ordered

-- name: lock_messages
SELECT count(row_key) FROM (
    SELECT row_key FROM message WHERE row_key = ANY ($1::bigint[]) ORDER BY row_key
    FOR UPDATE) AS ordered

-- name: load_heard
SELECT session_id, heard_ms FROM session_heard

-- name: keep_heard
INSERT INTO session_heard (session_id, heard_ms)
SELECT s, h FROM unnest($1::text[], $2::bigint[]) AS r (s, h) ORDER BY s
ON CONFLICT (session_id) DO UPDATE SET heard_ms = greatest(session_heard.heard_ms, excluded.heard_ms)

-- name: forget_heard
DELETE FROM session_heard WHERE session_id = $1

-- name: keep_signs
INSERT INTO session_sign (session_id, message_id, told_ms)
SELECT s, m, t FROM unnest($1::text[], $2::text[], $3::bigint[]) AS r (s, m, t) ORDER BY s, m
ON CONFLICT (session_id, message_id) DO UPDATE
SET told_ms = greatest(session_sign.told_ms, excluded.told_ms)

-- name: load_signs
SELECT message_id, told_ms FROM session_sign WHERE session_id = $1

-- name: forget_signs
DELETE FROM session_sign WHERE session_id = $1

-- name: log_size
SELECT coalesce(sum(number), 0)::bigint FROM counted WHERE partition = 0
