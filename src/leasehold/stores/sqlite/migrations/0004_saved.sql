-- What a holder has saved is kept as a body is, for the same reason: 1 if it is in message_saved.
ALTER TABLE message ADD COLUMN saved INTEGER NOT NULL DEFAULT 0;

CREATE TABLE message_saved (
    row_key INTEGER PRIMARY KEY,
    content TEXT NOT NULL                     -- JSON
) STRICT;

-- Whatever removes a message removes what was saved.
CREATE TRIGGER message_saved_gone AFTER DELETE ON message WHEN old.saved = 1 BEGIN
    DELETE FROM message_saved WHERE row_key = old.row_key;
END;
