-- The transaction that was published and by that settled the last claims, if it was one.
ALTER TABLE stream ADD COLUMN settled_with TEXT;

-- What becomes of members when their claim is settled. The partition is that of the claim.
CREATE TABLE claim_exemption (
    partition INTEGER NOT NULL,
    row_key   INTEGER NOT NULL,
    content   TEXT NOT NULL,                  -- JSON
    PRIMARY KEY (partition, row_key)
) STRICT, WITHOUT ROWID;

-- Claims that are settled when a transaction is published. Who bound one tells the token, so that
-- a row that is left when somebody else has attached refuses the publishing.
CREATE TABLE staged_binding (
    account TEXT NOT NULL,
    name    TEXT NOT NULL,
    queue   TEXT NOT NULL,
    stream  TEXT NOT NULL,
    number  INTEGER NOT NULL,
    token   INTEGER NOT NULL,
    PRIMARY KEY (account, name, queue, stream, number)
) STRICT, WITHOUT ROWID;
