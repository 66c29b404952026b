Looks at tables of the user. Values are bound; there are no names of users in here.

-- name: sqlite_columns
-- Name and declared type of each column.
SELECT name, type FROM pragma_table_info(:table, :schema)

-- name: sqlite_unique
-- A row for each column of each unique key: the number of the key, and the column.
SELECT -1 AS number, name FROM pragma_table_info(:table, :schema) WHERE pk > 0
UNION ALL
SELECT keys.seq, columns.name
FROM pragma_index_list(:table, :schema) AS keys
JOIN pragma_index_info(keys.name, :schema) AS columns
WHERE keys."unique" AND NOT keys.partial

-- name: postgresql_columns
SELECT attname::text, format_type(atttypid, NULL)
FROM pg_attribute
WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped

-- name: postgresql_unique
-- Without keys on expressions or parts of the table, and without columns that are only included.
SELECT keys.indexrelid::bigint, columns.attname::text
FROM pg_index AS keys
JOIN pg_attribute AS columns
  ON columns.attrelid = keys.indrelid
 AND columns.attnum = ANY ((keys.indkey::int2[])[0:keys.indnkeyatts - 1])
WHERE keys.indrelid = to_regclass(:table)
  AND keys.indisunique AND keys.indimmediate AND keys.indisvalid
  AND keys.indpred IS NULL AND keys.indexprs IS NULL
