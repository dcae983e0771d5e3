--
-- Pin and write in one statement, in every shape that a plan may have. PIN
-- stands for a call of pin() for the row's key with the current token, a stale
-- one and one that was never issued; for another key with its current token;
-- and (no pin) for a function that is always true.
--
\set SHOW_CONTEXT never
\getenv abs_srcdir PG_ABS_SRCDIR
\set ECHO none
\i :abs_srcdir/sql/include/attempt.sql
\set ECHO all
SET search_path = guarded, public;
-- Shapes are forced by settings that make a plan look dear enough for it.
SET jit = off;
CREATE FUNCTION no_pin() RETURNS boolean VOLATILE COST 1000 LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
-- The nodes of a plan, outer before inner.
CREATE FUNCTION nodes(plan jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  inner_shapes text;
BEGIN
  SELECT string_agg(nodes(p), ', ' ORDER BY n) INTO inner_shapes
    FROM jsonb_array_elements(plan->'Plans') WITH ORDINALITY a(p, n);
  RETURN concat(CASE plan->>'Node Type' WHEN 'ModifyTable' THEN plan->>'Operation' ELSE plan->>'Node Type' END,
                ' ' || coalesce(plan->>'Function Name', plan->>'Relation Name'),
                ' (' || inner_shapes || ')');
END $$;
CREATE FUNCTION shape(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  explained jsonb;
BEGIN
  EXECUTE 'EXPLAIN (COSTS OFF, FORMAT JSON) ' || statement INTO explained;
  RETURN nodes(explained->0->'Plan');
END $$;
CREATE FUNCTION try_form(form text, settings text[])
RETURNS TABLE (verdict text, plan text, "current pin" text, "stale token" text, "no pin" text, "another key's pin" text, "never issued" text)
LANGUAGE plpgsql AS $$
DECLARE
  setting text;
  mine path_token;
  other path_token;
  calls text[];
  call text;
  said text[];
BEGIN
  SELECT * INTO mine FROM path_token WHERE key = 'path:1';
  SELECT * INTO other FROM path_token WHERE key = 'path:99';
  calls := ARRAY[
    format('fenced_lock.pin(%L, %s)', mine.key, mine.present),
    format('fenced_lock.pin(%L, %s)', mine.key, mine.past),
    'guarded.no_pin()',
    format('fenced_lock.pin(%L, %s)', other.key, other.present),
    format('fenced_lock.pin(%L, %s)', mine.key, mine.present + 1000000)];
  BEGIN
    FOREACH setting IN ARRAY settings LOOP
      PERFORM set_config(split_part(setting, '=', 1), split_part(setting, '=', 2), true);
    END LOOP;
    plan := shape(replace(form, 'PIN', calls[1]));
    FOREACH call IN ARRAY calls LOOP
      BEGIN
        said := said || attempt(replace(form, 'PIN', call), '{}', 'no pin');
        RAISE SQLSTATE 'UNDO2';
      EXCEPTION WHEN SQLSTATE 'UNDO2' THEN
        NULL;
      END;
    END LOOP;
    RAISE SQLSTATE 'UNDO3';
  EXCEPTION WHEN SQLSTATE 'UNDO3' THEN
    NULL;
  END;
  verdict := CASE
    WHEN said = '{written,LF001,LF101,LF101,LF102}' THEN 'guarded'
    WHEN array_to_string(said[2:], ' ') ~ 'written' THEN 'not guarded'
    WHEN said[1] = 'nothing' THEN 'nothing to guard'
    ELSE 'refused' END;
  "current pin" := said[1];
  "stale token" := said[2];
  "no pin" := said[3];
  "another key's pin" := said[4];
  "never issued" := said[5];
  RETURN NEXT;
END $$;
CREATE TABLE wallet (id int PRIMARY KEY, balance int NOT NULL, open boolean NOT NULL DEFAULT true);
CREATE INDEX ON wallet (open);
INSERT INTO wallet SELECT i, 100, i < 10 FROM generate_series(1, 1000) i;
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TABLE public.job (id int PRIMARY KEY, wallet int NOT NULL, amount int NOT NULL);
INSERT INTO job SELECT i, i, 1 FROM generate_series(1, 1000) i;
CREATE TABLE ledger (id int, region text, amount int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE ledger_eu PARTITION OF ledger FOR VALUES IN ('eu');
CREATE TABLE ledger_us PARTITION OF ledger FOR VALUES IN ('us');
INSERT INTO ledger VALUES (1, 'eu', 100), (1, 'us', 100);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TABLE ledger_asia PARTITION OF ledger FOR VALUES IN ('asia');
ANALYZE wallet, job, ledger;

-- UPDATE … FROM pin
SELECT form, t.* FROM (VALUES
  ('UPDATE wallet SET balance = 0 FROM PIN WHERE id = 1', '{}'::text[]),
  ('UPDATE wallet SET balance = 0 FROM PIN WHERE id = 1', '{enable_indexscan=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN WHERE id = 1', '{enable_indexscan=off,enable_bitmapscan=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN p(ok) WHERE id = 1 AND open = ok', '{enable_nestloop=off,enable_mergejoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN p(ok) WHERE id = 1 AND open = ok', '{enable_nestloop=off,enable_hashjoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN p(ok), job WHERE wallet.id = job.wallet AND ok AND job.wallet < 2', '{enable_nestloop=off,enable_mergejoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN p(ok), job WHERE wallet.id = job.wallet AND ok AND job.wallet < 2', '{enable_nestloop=off,enable_hashjoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM PIN p(ok), job WHERE wallet.id = job.wallet AND ok AND job.id = 1', '{}'),
  ('UPDATE wallet SET balance = 0 FROM job LEFT JOIN PIN p(ok) ON true WHERE wallet.id = job.wallet AND job.id = 1', '{}')) f(form, settings),
  try_form(form, settings) t;

-- WHERE … AND pin
SELECT form, t.* FROM (VALUES
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND PIN', '{}'::text[]),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND PIN', '{enable_indexscan=off}'),
  ('UPDATE wallet SET balance = 0 WHERE PIN AND id = 1', '{enable_indexscan=off,enable_bitmapscan=off}'),
  ('UPDATE wallet SET balance = 0 FROM job WHERE wallet.id = job.wallet AND job.wallet < 2 AND PIN', '{enable_nestloop=off,enable_mergejoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM job WHERE wallet.id = job.wallet AND job.wallet < 2 AND PIN', '{enable_nestloop=off,enable_hashjoin=off}'),
  ('UPDATE wallet SET balance = 0 FROM job WHERE wallet.id = job.wallet AND job.id = 1 AND PIN', '{}'),
  ('DELETE FROM wallet WHERE id = 1 AND PIN', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND (SELECT PIN)', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND EXISTS (SELECT FROM PIN p(ok) WHERE ok)', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND open IN (SELECT ok FROM PIN p(ok))', '{}'),
  ('UPDATE wallet SET balance = CASE WHEN PIN THEN 0 END WHERE id = 1', '{}')) f(form, settings),
  try_form(form, settings) t;

-- DELETE … USING pin, INSERT … SELECT … FROM pin, MERGE
SELECT form, t.* FROM (VALUES
  ('DELETE FROM wallet USING PIN WHERE id = 1', '{}'::text[]),
  ('DELETE FROM wallet USING PIN WHERE id = 1', '{enable_indexscan=off,enable_bitmapscan=off}'),
  ('DELETE FROM wallet USING job, PIN WHERE wallet.id = job.wallet AND job.wallet < 2', '{enable_nestloop=off,enable_mergejoin=off}'),
  ('DELETE FROM wallet USING job, PIN WHERE wallet.id = job.wallet AND job.wallet < 2', '{enable_nestloop=off,enable_hashjoin=off}'),
  ('INSERT INTO ledger SELECT 1, ''eu'', 7 FROM PIN ON CONFLICT (id, region) DO UPDATE SET amount = 7', '{}'),
  ('INSERT INTO wallet SELECT 1, 7 FROM PIN ON CONFLICT (id) DO UPDATE SET balance = 7', '{}'),
  ('INSERT INTO wallet SELECT 1, 7 WHERE PIN ON CONFLICT (id) DO UPDATE SET balance = 7', '{}'),
  ('INSERT INTO wallet VALUES (1, 7) ON CONFLICT (id) DO UPDATE SET balance = 7 WHERE PIN', '{}'),
  ('MERGE INTO wallet USING PIN ON id = 1 WHEN MATCHED THEN UPDATE SET balance = 0', '{}'),
  ('MERGE INTO wallet w USING (SELECT 1 AS i FROM PIN) s ON w.id = s.i WHEN MATCHED THEN DELETE', '{enable_indexscan=off,enable_bitmapscan=off}'),
  ('MERGE INTO wallet w USING (SELECT job.* FROM job, PIN WHERE job.wallet < 2) s ON w.id = s.wallet WHEN MATCHED THEN UPDATE SET balance = 0', '{enable_nestloop=off,enable_mergejoin=off}'),
  ('MERGE INTO wallet USING (VALUES (1)) s(i) ON id = i WHEN MATCHED AND PIN THEN UPDATE SET balance = 0', '{}')) f(form, settings),
  try_form(form, settings) t;
ALTER TABLE wallet DISABLE TRIGGER zz_guard;
DELETE FROM wallet WHERE id = 1;
ALTER TABLE wallet ENABLE TRIGGER zz_guard;
SELECT form, t.* FROM (VALUES
  ('INSERT INTO wallet SELECT 1, 7 FROM PIN', '{}'::text[]),
  ('INSERT INTO wallet SELECT 1, 7 WHERE PIN', '{}'),
  ('INSERT INTO wallet SELECT wallet, amount FROM job, PIN WHERE job.id = 1', '{}'),
  ('INSERT INTO wallet VALUES (1, CASE WHEN PIN THEN 7 END)', '{}'),
  ('MERGE INTO wallet USING (SELECT 1 AS i FROM PIN) s ON id = i WHEN NOT MATCHED THEN INSERT VALUES (1, 7)', '{}')) f(form, settings),
  try_form(form, settings) t;
BEGIN;
SELECT fenced_lock.pin(key, present) FROM path_token WHERE key = 'path:1';
INSERT INTO wallet VALUES (1, 100);
COMMIT;

-- Partitions, those that are needed and all.
SELECT form, t.* FROM (VALUES
  ('UPDATE ledger SET amount = 0 FROM PIN WHERE id = 1 AND region = ''eu''', '{}'::text[]),
  ('UPDATE ledger SET amount = 0 FROM PIN WHERE id = 1', '{}'),
  ('UPDATE ledger SET amount = 0 WHERE id = 1 AND PIN', '{}'),
  ('UPDATE ledger SET region = ''asia'' FROM PIN WHERE id = 1 AND region = ''us''', '{}'),
  ('DELETE FROM ledger USING PIN WHERE id = 1', '{}'),
  ('MERGE INTO ledger USING PIN ON id = 1 WHEN MATCHED THEN UPDATE SET amount = 0', '{}')) f(form, settings),
  try_form(form, settings) t;

-- Common table expressions. One that nobody reads is not run, so nothing is
-- pinned; a writing one that is read before the pin is too early.
SELECT form, t.* FROM (VALUES
  ('WITH p AS (SELECT PIN AS ok) UPDATE wallet SET balance = 0 FROM p WHERE id = 1', '{}'::text[]),
  ('WITH p AS MATERIALIZED (SELECT PIN AS ok) UPDATE wallet SET balance = 0 FROM p WHERE id = 1 AND ok', '{}'),
  ('WITH p AS (SELECT PIN AS ok) UPDATE wallet SET balance = 0 WHERE id = 1 AND (SELECT ok FROM p)', '{}'),
  ('WITH p AS (SELECT PIN AS ok), u AS (UPDATE wallet SET balance = 0 FROM p WHERE id = 1 AND ok RETURNING id) SELECT id FROM u', '{}'),
  ('WITH u AS (UPDATE wallet SET balance = 0 WHERE id = 1 RETURNING id) SELECT PIN', '{}'),
  ('WITH p AS (SELECT PIN AS ok) UPDATE wallet SET balance = 0 WHERE id = 1', '{}'),
  ('WITH p AS MATERIALIZED (SELECT PIN AS ok) UPDATE wallet SET balance = 0 WHERE id = 1', '{}'),
  ('WITH u AS (UPDATE wallet SET balance = 0 WHERE id = 1 RETURNING id) SELECT PIN FROM u', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 RETURNING PIN', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND (true OR PIN)', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 1 AND (id = 1 OR PIN)', '{}')) f(form, settings),
  try_form(form, settings) t;

-- Sub-queries with LIMIT, and the row that a queue hands out.
SELECT form, t.* FROM (VALUES
  ('UPDATE wallet SET balance = 0 WHERE id IN (SELECT 1 FROM PIN LIMIT 1)', '{}'::text[]),
  ('UPDATE wallet SET balance = 0 WHERE id = (SELECT id FROM wallet ORDER BY id LIMIT 1) AND PIN', '{}'),
  ('UPDATE wallet SET balance = 0 FROM PIN WHERE id = (SELECT id FROM wallet ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)', '{}'),
  ('UPDATE wallet SET balance = 0 FROM (SELECT ok FROM PIN p(ok) LIMIT 0) p WHERE id = 1', '{}'),
  ('UPDATE wallet SET balance = 0 FROM PIN WHERE id = 7777', '{}'),
  ('UPDATE wallet SET balance = 0 WHERE id = 7777 AND PIN', '{}')) f(form, settings),
  try_form(form, settings) t;

-- No part of such a statement is run in a parallel worker, where one is allowed.
SELECT array_agg(format('%s=%s', name, CASE WHEN name ~ 'cost|size' THEN '0' ELSE 'on' END)) AS parallel FROM pg_settings
 WHERE name IN ('force_parallel_mode', 'debug_parallel_query', 'parallel_setup_cost', 'parallel_tuple_cost', 'min_parallel_table_scan_size') \gset
SELECT form, t.* FROM (VALUES
  ('UPDATE wallet SET balance = 0 FROM job, PIN WHERE wallet.id = job.wallet AND job.amount + job.wallet = 2'),
  ('INSERT INTO wallet SELECT wallet, amount FROM job WHERE job.amount + job.wallet = 2 AND PIN ON CONFLICT (id) DO UPDATE SET balance = 0')) f(form), try_form(form, :'parallel') t;

-- A generic plan knows neither key nor token.
SET plan_cache_mode = force_generic_plan;
PREPARE save_from(text, bigint) AS UPDATE wallet SET balance = 0 FROM fenced_lock.pin($1, $2) WHERE id = 1;
PREPARE save_where(text, bigint) AS UPDATE wallet SET balance = 0 WHERE id = 1 AND fenced_lock.pin($1, $2);
PREPARE save_ledger(text, bigint, text) AS UPDATE ledger SET amount = 0 FROM fenced_lock.pin($1, $2) WHERE id = 1 AND region = $3;
SELECT statement, shape(statement) FROM (VALUES
  ('EXECUTE save_from(''path:1'', 1)'),
  ('EXECUTE save_where(''path:1'', 1)'),
  ('EXECUTE save_ledger(''path:1'', 1, ''eu'')')) p(statement);
SELECT name, condition, attempt(format('EXECUTE %s(%L, %s%s)', name, key, token, more), '{}', 'no pin')
  FROM (VALUES ('save_from', ''), ('save_where', ''), ('save_ledger', ', ''eu''')) s(name, more),
       (SELECT 1, 'current pin', key, present FROM path_token WHERE key = 'path:1' UNION ALL
        SELECT 2, 'stale token', key, past FROM path_token WHERE key = 'path:1' UNION ALL
        SELECT 3, 'another key''s pin', key, present FROM path_token WHERE key = 'path:99' UNION ALL
        SELECT 4, 'never issued', key, present + 1000000 FROM path_token WHERE key = 'path:1') c(n, condition, key, token)
 ORDER BY name, n;
SELECT name, generic_plans > 0 AS generic, custom_plans FROM pg_prepared_statements ORDER BY name;
RESET plan_cache_mode;
DEALLOCATE ALL;

-- Many rows, each with a key and a token of its own.
CREATE TEMP TABLE batch AS SELECT substr(key, 6)::int AS wallet, key, present AS token FROM path_token WHERE key < 'path:4';
SELECT shape('UPDATE wallet SET balance = 1 FROM batch WHERE id = wallet AND fenced_lock.pin(key, token)');
UPDATE wallet SET balance = 1 FROM batch WHERE id = wallet AND fenced_lock.pin(key, token);
UPDATE batch SET token = (SELECT past FROM path_token p WHERE p.key = batch.key) WHERE key = 'path:3';
\set VERBOSITY sqlstate
UPDATE wallet SET balance = 2 FROM batch WHERE id = wallet AND fenced_lock.pin(key, token);
\set VERBOSITY default
SELECT id, balance FROM wallet ORDER BY id LIMIT 4;
DROP TABLE batch, job;
RESET search_path;
RESET jit;
\set ECHO none
\i :abs_srcdir/sql/include/attempt_end.sql
\set ECHO all
