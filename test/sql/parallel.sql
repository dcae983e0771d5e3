--
-- Plans: no call is folded, repeated or run in a parallel worker.
--
\set SHOW_CONTEXT never
CREATE TABLE plan_rows AS SELECT i FROM generate_series(1, 1000) i;
ANALYZE plan_rows;
-- Parallel plans wherever they are allowed (the setting was renamed in 16).
SELECT count(set_config(name, 'on', false)) AS forced FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE FUNCTION gathers(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    IF line ~ 'Gather' THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;
SELECT query, gathers(query) FROM (VALUES
  ('SELECT count(*) FROM plan_rows'),
  ('SELECT count(*) FROM plan_rows WHERE (fenced_lock.try_acquire(''plan:'' || i)).acquired'),
  ('SELECT count(*) FROM plan_rows WHERE fenced_lock.pin(''plan:'' || i, i)'),
  ('SELECT count(*) FROM plan_rows WHERE fenced_lock.renew(''plan:'' || i, gen_random_uuid()) IS NULL'),
  ('SELECT count(*) FROM plan_rows WHERE fenced_lock.release(''plan:'' || i, gen_random_uuid())')) v(query);
-- Once for each row, with the same argument too.
SELECT count(*) AS granted, count(DISTINCT fencing_token) AS tokens
  FROM plan_rows, LATERAL fenced_lock.try_acquire('plan:' || i);
CREATE SEQUENCE plan_calls;
SELECT count(*) AS refused FROM plan_rows WHERE nextval('plan_calls') > 0 AND NOT (fenced_lock.try_acquire('plan:1')).acquired;
SELECT last_value AS calls FROM plan_calls;
SELECT count(*) AS live FROM fenced_lock.locks WHERE key LIKE 'plan:%';
-- Costly, so that the cheap condition comes first.
EXPLAIN (COSTS OFF) SELECT * FROM plan_rows WHERE fenced_lock.pin('plan:1', 1) AND i = 1;
DROP TABLE plan_rows;
DROP SEQUENCE plan_calls;
DROP FUNCTION gathers;
