What servers ask about the time that they share.

-- name: look
SELECT clock_us(), correction_us, generation,
       EXISTS (SELECT 1 FROM agreed
               WHERE slot <> $1 AND agreed.generation = change.generation
                 AND clock_us() - raw_us BETWEEN 0 AND $2)
FROM change

-- name: now
SELECT clock_us() + correction_us FROM change

-- name: agree
-- Unless the clock was set since it was read.
INSERT INTO agreed (slot, raw_us, generation)
SELECT $1, clock_us(), $2 WHERE clock_us() - $3 BETWEEN 0 AND $4
ON CONFLICT (slot) DO UPDATE SET raw_us = excluded.raw_us, generation = excluded.generation

-- name: correct
-- Unless another server has done so, or the clock was set again, since it was read.
WITH corrected AS (
    UPDATE change SET correction_us = $1, generation = generation + 1, corrected_us = clock_us()
    WHERE generation = $2 AND clock_us() - $3 BETWEEN 0 AND $4
    RETURNING generation, corrected_us
)
INSERT INTO agreed (slot, raw_us, generation)
SELECT $5, corrected_us, generation FROM corrected
ON CONFLICT (slot) DO UPDATE SET raw_us = excluded.raw_us, generation = excluded.generation
RETURNING generation

-- name: begin_anew
-- There is nobody whose time would have to go on.
UPDATE change SET correction_us = 0, generation = generation + 1, corrected_us = clock_us()
WHERE correction_us <> 0 AND generation = $1

-- name: work_off
-- What has stood for long enough is worked off little by little.
UPDATE change
SET correction_us = correction_us - sign(correction_us)::bigint * least(abs(correction_us), $1)
WHERE correction_us <> 0 AND clock_us() - corrected_us >= $2

-- name: count_alive
-- Servers hold advisory locks; slot 0 is the lock of whoever leads.
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND objid <> 0::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = ('change'::regclass::oid::bigint & 2147483647)::oid
