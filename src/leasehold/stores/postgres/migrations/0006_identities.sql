-- Logical replication publishes changes of rows by what tells them apart: without an identity, all
-- updates of a table are refused as soon as there is a publication of all tables. These two have one
-- row each, and no key.

ALTER TABLE change REPLICA IDENTITY FULL;
ALTER TABLE format REPLICA IDENTITY FULL;
