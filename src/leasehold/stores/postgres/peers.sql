The statements of the link between servers. Advisory locks are numbered by the table change of the
schema, which is unique in a database, and by the slot of a server; no server has slot 0.

-- name: number
SELECT ('change'::regclass::oid::bigint & 2147483647)::int

-- name: set_up
-- A machine that vanishes is noticed by the database after six seconds, and so is a server that is
-- stopped, whose machine answers for it: see LEAD_S. Words to others
-- need not survive a crash, and must not hold the lock of their queue for the time of a sync.
SELECT set_config('tcp_keepalives_idle', '3', false),
       set_config('tcp_keepalives_interval', '1', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('tcp_user_timeout', '6000', false),
       set_config('lock_timeout', '2s', false),
       set_config('synchronous_commit', 'off', false),
       set_config('idle_session_timeout', '6s', false),
       set_config('application_name', 'leasehold link', false)

-- name: lock
SELECT pg_try_advisory_lock($1::bigint::int, $2::bigint::int)

-- name: end_stopped
-- Of servers that do not take the answer that they asked for, and hold what another one waits for:
-- the database ends by itself only those that are between two statements.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'leasehold'
  AND wait_event = 'ClientWrite' AND clock_timestamp() - query_start > $1 * interval '1 second'
  AND pid = ANY (SELECT unnest(pg_blocking_pids(waiting.pid)) FROM pg_stat_activity waiting
                 WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock')

-- name: unlock
SELECT pg_advisory_unlock($1::bigint::int, $2::bigint::int)

-- name: alone
LOCK TABLE change IN EXCLUSIVE MODE

-- name: raise_waits
UPDATE change SET waits = waits + 1

-- name: wait
INSERT INTO waiting (account, queue, slot)
SELECT a, q, $3 FROM unnest($1::text[], $2::text[]) AS r (a, q)
ON CONFLICT DO NOTHING

-- name: leave
DELETE FROM waiting USING unnest($1::text[], $2::text[]) AS r (a, q)
WHERE account = a AND queue = q AND slot = $3

-- name: forget_server
WITH its_word AS (DELETE FROM agreed WHERE slot = $1)
DELETE FROM waiting WHERE slot = $1

-- name: inherit
-- What a server that is no more has counted is counted by another one.
WITH gone AS (DELETE FROM counted WHERE slot = $1 RETURNING partition, number),
     left_over AS (DELETE FROM server WHERE slot = $1)
INSERT INTO counted (partition, slot, number)
SELECT partition, $2, number FROM gone ORDER BY partition
ON CONFLICT (partition, slot) DO UPDATE SET number = counted.number + excluded.number

-- name: other_slots
SELECT slot FROM waiting WHERE slot <> $1
UNION SELECT slot FROM counted WHERE slot <> $1
UNION SELECT slot FROM server WHERE slot <> $1
UNION SELECT slot FROM agreed WHERE slot <> $1

-- name: count_servers
-- One that has vanished counts until the leader forgets it.
SELECT count(*) FROM server

-- name: where_others_wait
SELECT waits, account, queue, slot FROM change LEFT JOIN waiting ON slot <> $1

-- name: notify
SELECT pg_notify($1, $2)
