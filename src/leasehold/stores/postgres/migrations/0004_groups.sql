-- As in the SQLite store.
ALTER TABLE message ADD COLUMN group_id text COLLATE "C";

CREATE INDEX message_by_group
    ON message (partition, group_id, (dequeue_count > 0), visible_at_ms, row_key)
    WHERE group_id IS NOT NULL;
