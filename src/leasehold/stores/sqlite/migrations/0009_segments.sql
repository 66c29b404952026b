-- Bodies of messages that were staged together stand several to a row, a segment: place 3. The body
-- of the message says where, as a number: from bit 28 on where it begins in the segment, from bit
-- 20 on how far the row key is from the first of the segment, and below how long it is.
CREATE TABLE body_segment (
    first_key INTEGER PRIMARY KEY,            -- row keys of the messages in it, which follow each other
    last_key  INTEGER NOT NULL,
    content   BLOB NOT NULL
) STRICT;

-- A segment goes with the last of its messages, or when no message has its body there any more.
-- Most often the next one is still there, which costs one look.
CREATE TRIGGER body_segment_gone AFTER DELETE ON message
WHEN old.place = 3 AND NOT EXISTS (
    SELECT 1 FROM message m WHERE m.row_key = old.row_key + 1 AND m.place = 3
      AND (CAST(m.body AS INTEGER) >> 20 & 255) > 0)
BEGIN
    DELETE FROM body_segment
    WHERE first_key = old.row_key - (CAST(old.body AS INTEGER) >> 20 & 255)
      AND NOT EXISTS (SELECT 1 FROM message m
                      WHERE m.row_key > old.row_key AND m.row_key <= last_key AND m.place = 3)
      AND NOT EXISTS (SELECT 1 FROM message m
                      WHERE m.row_key >= first_key AND m.row_key < old.row_key AND m.place = 3);
END;

CREATE TRIGGER body_segment_left AFTER UPDATE OF place ON message
WHEN old.place = 3 AND new.place <> 3 BEGIN
    DELETE FROM body_segment
    WHERE first_key = old.row_key - (CAST(old.body AS INTEGER) >> 20 & 255)
      AND NOT EXISTS (SELECT 1 FROM message m
                      WHERE m.row_key BETWEEN first_key AND last_key AND m.place = 3);
END;
