-- Deduplication keys are kept as all other texts are (see texts.py). Before, U+FDD0 stood for NUL,
-- the text \ufdd0 for \u0000, and a key that was staged had U+FFFF as it is. A key with any of these
-- may have been either; until its window is over, it counts as both.
INSERT INTO dedup_key (scope, key, message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms)
SELECT scope, replace(replace(meant, U&'\FDD0', U&'\FFFF' || '0000'), '\ufdd0', '\u0000'),
       message_id, inserted_at_ms, expires_at_ms, visible_at_ms, until_ms
FROM (SELECT *, key AS meant FROM dedup_key
      WHERE position(U&'\FDD0' IN key) + position('\ufdd0' IN key) > 0
      UNION ALL
      SELECT *, replace(key, U&'\FFFF', U&'\FFFF' || 'ffff') FROM dedup_key
      WHERE position(U&'\FFFF' IN key) > 0) AS found
ON CONFLICT DO NOTHING;
