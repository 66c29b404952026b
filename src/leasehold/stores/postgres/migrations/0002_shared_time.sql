-- The time that all servers share is that of the database's clock and a correction: whoever finds
-- that somebody has set the clock changes the correction, so that time goes on as before.

-- A function, so that all statements read the same clock.
CREATE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

ALTER TABLE change
    ADD COLUMN correction_us bigint NOT NULL DEFAULT 0,
    -- How often it was changed, and when last, by the database's clock.
    ADD COLUMN generation    bigint NOT NULL DEFAULT 0,
    ADD COLUMN corrected_us  bigint NOT NULL DEFAULT 0;

-- When each server last found the shared time to be its own, by the database's clock, and under
-- which correction.
CREATE TABLE agreed (
    slot       bigint PRIMARY KEY,
    raw_us     bigint NOT NULL,
    generation bigint NOT NULL
) WITH (fillfactor = 50);
