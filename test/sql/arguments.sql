--
-- Arguments: NULL, bad values, and that a refused call has touched nothing.
--
\set SHOW_CONTEXT never
\pset null '<null>'
-- SQLSTATE and message of a statement's failure, or its result.
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  result text;
BEGIN
  EXECUTE statement INTO result;
  RETURN coalesce(result, '<null>');
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, regexp_replace(SQLERRM, 'token is \d+', 'token is N'));
END $$;

-- Every function with every argument NULL in turn.
SELECT call, outcome('SELECT ' || call) FROM (VALUES
  ('acquired FROM fenced_lock.try_acquire(NULL)'),
  ('acquired, expires_at - now() <= interval ''30 s'' FROM fenced_lock.try_acquire(''arg:1'', NULL, NULL, NULL)'),
  ('acquired FROM fenced_lock.acquire(NULL)'),
  ('fenced_lock.renew(NULL, gen_random_uuid())'),
  ('fenced_lock.renew(''arg:1'', NULL)'),
  ('fenced_lock.renew(''arg:1'', NULL, ''1 s'')'),
  ('fenced_lock.renew(''arg:1'', gen_random_uuid(), NULL)'),
  ('fenced_lock.release(NULL, gen_random_uuid())'),
  ('fenced_lock.release(''arg:1'', NULL)'),
  ('fenced_lock.pin(NULL, 1)'),
  ('fenced_lock.pin(''arg:1'', NULL)'),
  ('fenced_lock.pin_all(NULL, 1)'),
  ('fenced_lock.pin_all(''{arg:1}'', NULL)'),
  ('fenced_lock.pin_all(''{arg:1,NULL}'', 1)'),
  ('fenced_lock.lock_id(NULL)'),
  ('fenced_lock.allow(NULL)'),
  ('fenced_lock.disallow(NULL)')) v(call);

-- ttl of try_acquire and of renew: positive, finite, no months, bounded.
SELECT owner_token AS o FROM fenced_lock.try_acquire('arg:2') \gset
SELECT ttl, outcome(format('SELECT acquired FROM fenced_lock.try_acquire(%L, %L)', 'arg:ttl:' || ttl, ttl)) AS try_acquire
  FROM (VALUES ('0'), ('-1 s'), ('1 us'), ('0.0000001 s'), ('0.9 ms'),
               ('1 month -31 days'), ('1 month'), ('300000 years'), ('178000000 years'),
               ('30000'), ('1 h 1 ms'), ('1 day'), ('-1 day 25 h 1 s'), ('2147483647 days'),
               ('1 ms'), ('1.5 ms'), ('1 h'), ('-1 day 25 h'), ('1 day -23:59:59')) v(ttl);
-- From 17 on an interval can be infinite; before, that is not an interval.
SELECT ttl, outcome(format('SELECT acquired FROM fenced_lock.try_acquire(''arg:3'', %L)', ttl)) ~ '^22(007|023):' AS refused
  FROM (VALUES ('infinity'), ('-infinity')) v(ttl);
SELECT ttl, outcome(format('SELECT fenced_lock.renew(%L, %L, %L) IS NOT NULL', 'arg:2', :'o', ttl)) AS renew
  FROM (VALUES ('0'), ('-1 s'), ('1 us'), ('1 month -31 days'), ('300000 years'), ('30000'), ('1 h')) v(ttl);
-- The bare number of JavaScript.
SELECT acquired FROM fenced_lock.try_acquire('arg:3', '30000');
-- Nothing was touched.
SELECT key, ttl FROM fenced_lock.lock_row WHERE key LIKE 'arg:ttl:%' OR key = 'arg:3' ORDER BY key;

-- wait: like ttl, but may be 0, and NULL is the default.
SELECT wait, outcome(format('SELECT acquired FROM fenced_lock.try_acquire(''arg:wait'', wait => %L)', wait)) AS try_acquire,
       outcome(format('SELECT acquired FROM fenced_lock.acquire(''arg:wait'', wait => %L)', wait)) AS acquire
  FROM (VALUES ('-1 ms'), ('-1 us'), ('1 month -31 days'), ('1 month'), ('300000 years'), ('30000 days'),
               ('1 us'), ('0.9 ms'), ('2147483647 days'), ('soon')) v(wait);
SELECT wait, outcome(format('SELECT acquired FROM fenced_lock.acquire(''arg:wait'', wait => %L)', wait)) ~ '^22(007|023):' AS refused
  FROM (VALUES ('infinity'), ('-infinity')) v(wait);
SELECT count(*) AS untouched FROM fenced_lock.lock_row WHERE key = 'arg:wait';
SELECT wait, outcome(format('SELECT acquired FROM fenced_lock.try_acquire(%L, wait => %L)', 'arg:wait:' || coalesce(wait, ''), wait)) AS try_acquire
  FROM (VALUES ('0'), ('1 ms'), ('1 day'), (NULL)) v(wait);
-- One look each.
SELECT outcome('SELECT acquired FROM fenced_lock.try_acquire(''arg:wait:0'', wait => NULL)'),
       outcome('SELECT acquired FROM fenced_lock.acquire(''arg:wait:0'', wait => ''0'')');

-- A day is 24 hours in every time zone, also where the clocks change.
SET fenced_lock.max_ttl = '2 d';
SET timezone = 'Europe/Berlin';
SELECT (expires_at - clock_timestamp()) BETWEEN '23:59' AND '24:00' AS one_day FROM fenced_lock.try_acquire('arg:day', '1 day');
SELECT ttl FROM fenced_lock.lock_row WHERE key = 'arg:day';
RESET timezone;
-- The bound is an administrator's, and counts for the default too.
SET fenced_lock.max_ttl = '10 s';
SELECT acquired FROM fenced_lock.try_acquire('arg:4');
SELECT acquired FROM fenced_lock.try_acquire('arg:4', NULL);
SELECT acquired FROM fenced_lock.try_acquire('arg:4', '10 s');
-- renew without a ttl goes on with the lease's own.
SELECT fenced_lock.renew('arg:2', :'o') IS NOT NULL AS renewed;
RESET fenced_lock.max_ttl;
\set VERBOSITY sqlstate
SET fenced_lock.max_ttl = 0;
\set VERBOSITY default

-- Fencing tokens, sets of keys, roles; wrong types are PostgreSQL's to refuse.
SELECT call, outcome('SELECT ' || call) FROM (VALUES
  ('fenced_lock.pin(''arg:2'', 0)'),
  ('fenced_lock.pin(''arg:2'', -5)'),
  ('fenced_lock.pin_all(''{arg:2}'', 0)'),
  ('fenced_lock.pin(''arg:2'', 9223372036854775807)'),
  ('fenced_lock.pin(''arg:none'', 9223372036854775807)'),
  ('fenced_lock.pin(''arg:none'', 1)'),
  ('fenced_lock.pin_all(''{}'', 1)'),
  ('fenced_lock.pin_all(''{{a,b},{c,d}}'', 1)'),
  ('fenced_lock.pin_all(ARRAY[''a'', ''''], 1)'),
  ('fenced_lock.pin_all(array_agg(''arg:'' || i), 1) FROM generate_series(1, 1001) i'),
  ('fenced_lock.allow(''no_such_role'')'),
  ('fenced_lock.allow(4294967295::oid::regrole)'),
  ('fenced_lock.disallow(4294967295::oid::regrole)'),
  ('acquired FROM fenced_lock.try_acquire(''arg:6'', ''soon'')'),
  ('fenced_lock.release(''arg:2'', ''not-a-uuid'')'),
  ('fenced_lock.pin(''arg:2'', ''1.5'')')) v(call);

-- Read-only transactions; looking is allowed.
BEGIN READ ONLY;
SELECT regexp_replace(call, '[0-9a-f-]{36}', '…') AS call, outcome('SELECT ' || call) FROM (VALUES
  ('acquired FROM fenced_lock.try_acquire(''arg:5'')'),
  ('acquired FROM fenced_lock.acquire(''arg:5'')'),
  (format('fenced_lock.renew(''arg:2'', %L)', :'o')),
  (format('fenced_lock.release(''arg:2'', %L)', :'o')),
  ('fenced_lock.pin(''arg:2'', 1)'),
  ('fenced_lock.pin_all(''{arg:2}'', 1)'),
  ('fenced_lock.allow(current_user::regrole)'),
  ('fenced_lock.disallow(current_user::regrole)'),
  ('count(*) FROM fenced_lock.locks WHERE key = ''arg:2''')) v(call);
ROLLBACK;
SELECT count(*) AS untouched FROM fenced_lock.locks WHERE key = 'arg:2';

DROP FUNCTION outcome;
