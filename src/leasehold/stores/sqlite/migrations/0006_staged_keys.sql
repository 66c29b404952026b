-- Rows of a slot that have a deduplication key: where there are none, publishing looks for none.
ALTER TABLE staged_slot ADD COLUMN keyed INTEGER NOT NULL DEFAULT 0;

-- Rows that were dropped when the transaction was published, as their key had been used.
ALTER TABLE staged_transaction ADD COLUMN duplicates INTEGER NOT NULL DEFAULT 0;
