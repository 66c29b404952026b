-- The message group, which is in the detail too: what is here can be searched. Messages of groups
-- have lanes of their own: those of priority p are in the lane (p + 16) * 2^40 + partition.
ALTER TABLE message ADD COLUMN group_id TEXT;

-- The messages of one group of a lane: those received before, and the others, as they become visible.
CREATE INDEX message_by_group ON message (partition, group_id, dequeue_count > 0, visible_at_ms)
    WHERE group_id IS NOT NULL;
