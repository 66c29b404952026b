-- Members of claims are looked for by their places only: those of partitions with this bit, which
-- claims have from now on, are not in the index by phase. A claim that is open keeps its partition.
DROP INDEX message_by_phase;

CREATE INDEX message_by_phase ON message (partition, phase, since_ms)
    WHERE phase > 0 AND partition & 549755813888 = 0;
