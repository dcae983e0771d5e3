--
-- The token sequence, set and altered by hands: no token is ever below or
-- equal to one that was issued.
--
CREATE VIEW next_grant AS
SELECT fencing_token FROM fenced_lock.try_acquire('sequence:' || gen_random_uuid());
CREATE TABLE issued (token bigint);
CREATE FUNCTION has_risen() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  before bigint := (SELECT max(token) FROM issued);
  token bigint := (SELECT fencing_token FROM next_grant);
BEGIN
  INSERT INTO issued VALUES (token);
  RETURN token > before;
END $$;
INSERT INTO issued SELECT fencing_token FROM next_grant;

-- Set back: far, to a value of a moment ago, in all stages of what nextval()
-- has logged ahead.
SELECT setval('fenced_lock.token_seq', 1) AS set_back;
SELECT has_risen();
SELECT setval('fenced_lock.token_seq', 1, false) AS set_back;
SELECT has_risen();
SELECT setval('fenced_lock.token_seq', max(token) - 1) IS NOT NULL AS set_back FROM issued;
SELECT has_risen();
SELECT bool_and(has_risen()) AS risen FROM (
  SELECT setval('fenced_lock.token_seq', 1000 + i) FROM generate_series(1, 5) i) s;
SELECT bool_and(has_risen()) AS risen FROM generate_series(1, 100);
DO $$
BEGIN
  FOR i IN 1 .. 40 LOOP
    FOR j IN 1 .. i LOOP
      IF NOT has_risen() THEN RAISE 'not risen'; END IF;
    END LOOP;
    PERFORM setval('fenced_lock.token_seq', (SELECT max(token) - 1 FROM issued));
  END LOOP;
END $$;
SELECT has_risen();
ALTER SEQUENCE fenced_lock.token_seq RESTART;
SELECT has_risen();
-- Nor does a checkpoint, after which nextval() logs again, lose the floor.
CHECKPOINT;
SELECT has_risen();
SELECT setval('fenced_lock.token_seq', max(token) - 1) IS NOT NULL AS set_back FROM issued;
SELECT has_risen();
-- Set forward is what raise_fence() does more safely.
SELECT setval('fenced_lock.token_seq', max(token) + 1000) IS NOT NULL AS set_forward FROM issued;
SELECT has_risen();
SELECT count(*) - count(DISTINCT token) AS twice FROM issued;

-- Altered so that tokens would not rise: an error, and nothing is granted.
ALTER SEQUENCE fenced_lock.token_seq CACHE 20;
SELECT * FROM fenced_lock.try_acquire('sequence:altered');
SELECT nextval('fenced_lock.token_seq') IS NOT NULL AS cached_in_this_session;
ALTER SEQUENCE fenced_lock.token_seq INCREMENT -1 CACHE 1;
SELECT * FROM fenced_lock.try_acquire('sequence:altered');
ALTER SEQUENCE fenced_lock.token_seq INCREMENT 1 CYCLE;
SELECT * FROM fenced_lock.try_acquire('sequence:altered');
SELECT fenced_lock.raise_fence(1);
SELECT count(*) AS held FROM fenced_lock.locks WHERE key = 'sequence:altered';
ALTER SEQUENCE fenced_lock.token_seq NO CYCLE;
SELECT bool_and(has_risen()) AS risen FROM generate_series(1, 30);

ALTER SEQUENCE fenced_lock.token_seq MAXVALUE 999999999999999999;
SELECT * FROM fenced_lock.try_acquire('sequence:altered');
ALTER SEQUENCE fenced_lock.token_seq NO MAXVALUE;
SELECT has_risen();

-- A row that bears a token from elsewhere: the key's own last token counts.
SELECT fencing_token AS token, owner_token AS owner FROM fenced_lock.try_acquire('sequence:row') \gset
SELECT fenced_lock.release('sequence:row', :'owner');
UPDATE fenced_lock.lock_row SET fencing_token = 4000000000000000000 WHERE key = 'sequence:row';
\set VERBOSITY sqlstate
SELECT * FROM fenced_lock.try_acquire('sequence:row');
\set VERBOSITY default
SELECT fenced_lock.raise_fence(4000000000000000000);
SELECT fencing_token FROM fenced_lock.try_acquire('sequence:row');

-- raise_fence(): upwards only, at once and for good.
SELECT fenced_lock.raise_fence(NULL);
SELECT fenced_lock.raise_fence(0);
SELECT fenced_lock.raise_fence(4611686018427387905);
SELECT fenced_lock.raise_fence(5);
BEGIN;
SELECT fenced_lock.raise_fence(4100000000000000000);
ROLLBACK;
SELECT fencing_token FROM next_grant;
SELECT setval('fenced_lock.token_seq', 4000000000000000001) AS set_back;
SELECT fenced_lock.raise_fence(1) > 4100000000000000001 AS not_lowered;
BEGIN READ ONLY;
SELECT fenced_lock.raise_fence(1);
ROLLBACK;

-- At its end: an error, and nothing is granted.
SELECT setval('fenced_lock.token_seq', 9223372036854775806);
SELECT fencing_token FROM next_grant;
SELECT fencing_token FROM next_grant;
SELECT setval('fenced_lock.token_seq', 1);
SELECT fencing_token FROM next_grant;
SELECT fenced_lock.raise_fence(1);
SELECT setval('fenced_lock.token_seq', max(token)), setval('fenced_lock.floor_seq', max(token))
  FROM issued \g /dev/null
SELECT fencing_token < 1000000000000000 AS as_it_was FROM next_grant;
DROP FUNCTION has_risen();
DROP VIEW next_grant;
DROP TABLE issued;
