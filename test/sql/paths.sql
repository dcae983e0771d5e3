--
-- Each way to write to a table, with a pin of the row's key and without.
-- What the columns mean: see include/attempt.sql.
--
\set SHOW_CONTEXT never
\getenv abs_srcdir PG_ABS_SRCDIR
\set ECHO none
\i :abs_srcdir/sql/include/attempt.sql
\set ECHO all
SET search_path = guarded, public;
CREATE TABLE wallet (id int PRIMARY KEY, slot int UNIQUE, balance int NOT NULL);
INSERT INTO wallet SELECT i, i, 100 FROM generate_series(1, 3) i;
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON wallet
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('path:{id}');

-- The row that is written has key path:1 or, where it is new, path:4.
SELECT path, t.* FROM (VALUES
  ('INSERT', 'INSERT INTO wallet VALUES (4, 4, 0)', 'path:4'),
  ('INSERT … SELECT', 'INSERT INTO wallet SELECT 4, 4, 0', 'path:4'),
  ('UPDATE', 'UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('UPDATE that changes nothing', 'UPDATE wallet SET balance = balance WHERE id = 1', 'path:1'),
  ('UPDATE … FROM', 'UPDATE wallet SET balance = 0 FROM (VALUES (1)) v(i) WHERE id = i', 'path:1'),
  ('DELETE', 'DELETE FROM wallet WHERE id = 1', 'path:1'),
  ('DELETE … USING', 'DELETE FROM wallet USING (VALUES (1)) v(i) WHERE id = i', 'path:1'),
  ('COPY', $$COPY wallet FROM PROGRAM 'printf "4\t4\t0\n"'$$, 'path:4'),
  ('INSERT … ON CONFLICT, no conflict', 'INSERT INTO wallet VALUES (4, 4, 0) ON CONFLICT (id) DO UPDATE SET balance = 0', 'path:4'),
  ('INSERT … ON CONFLICT DO UPDATE', 'INSERT INTO wallet VALUES (1, 1, 0) ON CONFLICT (id) DO UPDATE SET balance = 0', 'path:1'),
  ('INSERT … ON CONFLICT DO UPDATE WHERE', 'INSERT INTO wallet VALUES (1, 1, 0) ON CONFLICT (id) DO UPDATE SET balance = 0 WHERE false', 'path:1'),
  ('INSERT … ON CONFLICT DO NOTHING', 'INSERT INTO wallet VALUES (1, 1, 0) ON CONFLICT DO NOTHING', 'path:1'),
  ('MERGE, INSERT', 'MERGE INTO wallet w USING (VALUES (4)) v(i) ON w.id = v.i WHEN NOT MATCHED THEN INSERT VALUES (4, 4, 0)', 'path:4'),
  ('MERGE, UPDATE', 'MERGE INTO wallet w USING (VALUES (1)) v(i) ON w.id = v.i WHEN MATCHED THEN UPDATE SET balance = 0', 'path:1'),
  ('MERGE, DELETE', 'MERGE INTO wallet w USING (VALUES (1)) v(i) ON w.id = v.i WHEN MATCHED THEN DELETE', 'path:1'),
  ('MERGE, DO NOTHING', 'MERGE INTO wallet w USING (VALUES (1)) v(i) ON w.id = v.i WHEN MATCHED THEN DO NOTHING', 'path:1'),
  ('writable CTE', 'WITH w AS (UPDATE wallet SET balance = 0 WHERE id = 1 RETURNING id) SELECT id FROM w', 'path:1'),
  ('writable CTE that nobody reads', 'WITH w AS (DELETE FROM wallet WHERE id = 1) SELECT 1', 'path:1'),
  ('UPDATE of no row', 'UPDATE wallet SET balance = 0 WHERE id = 77', 'path:1'),
  ('TRUNCATE', 'TRUNCATE wallet', 'path:1')) p(path, statement, key), try_path(statement, key) t;

-- Several rows: each key must be pinned, or the statement fails as a whole.
SELECT path, t.* FROM (VALUES
  ('many rows, all keys pinned', 'UPDATE wallet SET balance = 0', '{path:1,path:2,path:3}'::text[]),
  ('many rows, the last key not pinned', 'UPDATE wallet SET balance = 0', '{path:1,path:2}'),
  ('many rows, the first key not pinned', 'DELETE FROM wallet', '{path:2,path:3}'),
  ('INSERT of two rows, one key pinned', 'INSERT INTO wallet VALUES (4, 4, 0), (5, 5, 0)', '{path:4}'),
  ('COPY of two rows, one key pinned', $$COPY wallet FROM PROGRAM 'printf "4\t4\t0\n5\t5\t0\n"'$$, '{path:4}'),
  ('MERGE of two rows, one key pinned', 'MERGE INTO wallet w USING (VALUES (1), (4)) v(i) ON w.id = v.i WHEN MATCHED THEN UPDATE SET balance = 0 WHEN NOT MATCHED THEN INSERT VALUES (4, 4, 0)', '{path:1}'),
-- A conflict over another column than the key's: the row proposed and the row found.
  ('ON CONFLICT with the row of another key', 'INSERT INTO wallet VALUES (4, 1, 0) ON CONFLICT (slot) DO UPDATE SET balance = 0', '{path:1,path:4}'),
  ('ON CONFLICT, only the proposed key pinned', 'INSERT INTO wallet VALUES (4, 1, 0) ON CONFLICT (slot) DO UPDATE SET balance = 0', '{path:4}'),
  ('ON CONFLICT, only the found key pinned', 'INSERT INTO wallet VALUES (4, 1, 0) ON CONFLICT (slot) DO UPDATE SET balance = 0', '{path:1}'),
-- A row that changes its key: the old one and the new one.
  ('key column changed', 'UPDATE wallet SET id = 4 WHERE id = 1', '{path:1,path:4}'),
  ('key column changed, old key pinned', 'UPDATE wallet SET id = 4 WHERE id = 1', '{path:1}'),
  ('key column changed, new key pinned', 'UPDATE wallet SET id = 4 WHERE id = 1', '{path:4}'),
  ('two rows get new keys', 'MERGE INTO wallet w USING (VALUES (1, 3), (2, 4)) v(i, j) ON w.id = v.i WHEN MATCHED THEN UPDATE SET id = CASE i WHEN 1 THEN 4 ELSE 5 END', '{path:1,path:2,path:4,path:5}')
  ) p(path, statement, keys), try_path(statement, VARIADIC keys) t;

-- COPY from a client's stdin is the same.
\set VERBOSITY sqlstate
SELECT present, past FROM path_token WHERE key = 'path:4' \gset
SELECT present AS other FROM path_token WHERE key = 'path:99' \gset
COPY wallet FROM STDIN;
4	4	0
\.
BEGIN;
SELECT fenced_lock.pin('path:99', :other);
COPY wallet FROM STDIN;
4	4	0
\.
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT fenced_lock.pin('path:4', :past);
ROLLBACK TO s;
COPY wallet FROM STDIN;
4	4	0
\.
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT fenced_lock.pin('path:4', :present + 1000000);
ROLLBACK TO s;
COPY wallet FROM STDIN;
4	4	0
\.
ROLLBACK;
BEGIN;
SELECT fenced_lock.pin('path:4', :present);
COPY wallet FROM STDIN;
4	4	0
\.
SELECT * FROM wallet WHERE id = 4;
ROLLBACK;
\set VERBOSITY default

-- A conflict that ends in nothing leaves no trace: not a version, not a lock.
SELECT xmin AS version, ctid AS place FROM wallet WHERE id = 1 \gset
BEGIN;
SELECT fenced_lock.pin('path:1', present) FROM path_token WHERE key = 'path:1';
INSERT INTO wallet VALUES (1, 1, 0) ON CONFLICT DO NOTHING;
SELECT xmin = :'version' AND ctid = :'place' AND xmax = 0 AS untouched FROM wallet WHERE id = 1;
COMMIT;

-- Prepared statements, also once their plan does not look at the parameters.
PREPARE save(int, int) AS UPDATE wallet SET balance = $2 WHERE id = $1;
SELECT 'prepared statement' AS path, t.* FROM try_path('EXECUTE save(1, 0)', 'path:1') t;
SELECT generic_plans > 0 AS generic, custom_plans > 0 AS custom FROM pg_prepared_statements WHERE name = 'save';
SET plan_cache_mode = force_generic_plan;
SELECT 'prepared statement, generic plan' AS path, t.* FROM try_path('EXECUTE save(1, 0)', 'path:1') t;
SELECT generic_plans > 0 AS generic FROM pg_prepared_statements WHERE name = 'save';
RESET plan_cache_mode;

-- Functions and blocks. Whose rights a function has does not matter: what is
-- pinned belongs to the transaction.
CREATE ROLE fl_path_owner;
CREATE ROLE fl_path_caller;
GRANT USAGE ON SCHEMA guarded TO fl_path_owner, fl_path_caller;
GRANT SELECT, UPDATE ON wallet TO fl_path_owner;
CREATE FUNCTION save_as_owner() RETURNS void SECURITY DEFINER LANGUAGE sql AS
  'UPDATE guarded.wallet SET balance = 0 WHERE id = 1';
ALTER FUNCTION save_as_owner() OWNER TO fl_path_owner;
CREATE PROCEDURE save_in_procedure() LANGUAGE plpgsql AS
  'BEGIN UPDATE wallet SET balance = 0 WHERE id = 1; END';
-- A pin that is rolled back with its block is none.
CREATE FUNCTION save_after_swallowed_pin() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  BEGIN
    PERFORM fenced_lock.pin(key, present) FROM path_token WHERE key = 'path:1';
    RAISE EXCEPTION 'swallowed' USING ERRCODE = 'SWALL';
  EXCEPTION WHEN SQLSTATE 'SWALL' THEN
    NULL;
  END;
  UPDATE wallet SET balance = 0 WHERE id = 1;
END $$;
CREATE FUNCTION save_and_swallow() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE wallet SET balance = 0 WHERE id = 1;
EXCEPTION WHEN OTHERS THEN
  NULL;
END $$;
SELECT path, t.* FROM (VALUES
  ('function SECURITY DEFINER', 'SET LOCAL ROLE fl_path_caller; SELECT guarded.save_as_owner()', 'path:1'),
  ('procedure', 'CALL save_in_procedure()', 'path:1'),
  ('after a pin that was rolled back', 'SELECT save_after_swallowed_pin()', 'path:1'),
  ('block that swallows the error', 'SELECT save_and_swallow()', 'path:1'),
  ('cursor, WHERE CURRENT OF', $$DO 'DECLARE c CURSOR FOR SELECT * FROM guarded.wallet WHERE id = 1; r record;
      BEGIN OPEN c; FETCH c INTO r; UPDATE guarded.wallet SET balance = 0 WHERE CURRENT OF c; END'$$, 'path:1'),
  ('cursor FOR UPDATE, WHERE CURRENT OF', $$DO 'DECLARE c CURSOR FOR SELECT * FROM guarded.wallet WHERE id = 1 FOR UPDATE; r record;
      BEGIN OPEN c; FETCH c INTO r; DELETE FROM guarded.wallet WHERE CURRENT OF c; END'$$, 'path:1')
  ) p(path, statement, key), try_path(statement, key) t;
-- In a procedure a COMMIT ends the pin.
CREATE PROCEDURE pin_commit_save() LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fenced_lock.pin(key, present) FROM path_token WHERE key = 'path:1';
  UPDATE wallet SET balance = 1 WHERE id = 1;
  COMMIT;
  UPDATE wallet SET balance = 2 WHERE id = 1;
END $$;
\set VERBOSITY sqlstate
CALL pin_commit_save();
\set VERBOSITY default
SELECT balance FROM wallet WHERE id = 1;

-- What an owner or a superuser can do.
SELECT path, t.* FROM (VALUES
  ('session_replication_role = replica', 'SET LOCAL session_replication_role = replica; UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('session_replication_role = local', 'SET LOCAL session_replication_role = local; UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('replica, ENABLE ALWAYS TRIGGER', 'ALTER TABLE wallet ENABLE ALWAYS TRIGGER zz_guard; SET LOCAL session_replication_role = replica; UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('ENABLE REPLICA TRIGGER', 'ALTER TABLE wallet ENABLE REPLICA TRIGGER zz_guard; UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('DISABLE TRIGGER', 'ALTER TABLE wallet DISABLE TRIGGER zz_guard; UPDATE wallet SET balance = 0 WHERE id = 1', 'path:1'),
  ('copy of the table made with LIKE', 'CREATE TABLE copied (LIKE wallet INCLUDING ALL); INSERT INTO copied SELECT * FROM wallet', 'path:1'),
  ('ALTER TABLE that rewrites', 'ALTER TABLE wallet ALTER balance TYPE bigint USING 0', 'path:1'),
  ('TRUNCATE without a TRUNCATE trigger', 'DROP TRIGGER zz_guard_truncate ON wallet; TRUNCATE wallet', 'path:1')
  ) p(path, statement, key), try_path(statement, key) t;

-- Nothing of all that has left a trace.
SELECT * FROM wallet ORDER BY id;
SELECT count(*) AS pinned FROM fenced_lock.locks WHERE pinned_by IS NOT NULL;
DROP OWNED BY fl_path_owner;
DROP ROLE fl_path_owner;
DROP OWNED BY fl_path_caller;
DROP ROLE fl_path_caller;
DEALLOCATE save;
DROP PROCEDURE save_in_procedure, pin_commit_save;
DROP FUNCTION save_after_swallowed_pin, save_and_swallow;
RESET search_path;
\set ECHO none
\i :abs_srcdir/sql/include/attempt_end.sql
\set ECHO all
