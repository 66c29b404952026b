What is asked about a transaction whose COMMIT had no answer.

-- name: writer
-- A server that has recovered from a crash, and one that was a standby, counts anew since then.
SELECT pg_backend_pid()::bigint,
       (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()),
       (SELECT stats_reset::text FROM pg_stat_bgwriter)

-- name: transaction
SELECT pg_current_xact_id_if_assigned()::text

-- name: end_writer
-- As long as it is there it may still commit.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND backend_start = $2::timestamptz

-- name: status
SELECT pg_xact_status($1::text::xid8)

-- name: has_events
SELECT EXISTS (SELECT 1 FROM event_batch WHERE seq = $1 AND content = $2)

-- name: wait_for_standbys
-- Whoever waited for them before was ended; this commit comes later, and waits again.
SELECT pg_logical_emit_message(true, 'leasehold', '')
