--
-- Partitions and inheritance children, written to through the parent and
-- directly. What the columns mean: see include/attempt.sql.
--
\set SHOW_CONTEXT never
\getenv abs_srcdir PG_ABS_SRCDIR
\set ECHO none
\i :abs_srcdir/sql/include/attempt.sql
\set ECHO all
SET search_path = guarded, public;
-- A partition numbers its columns in its own way, of which some were dropped.
CREATE TABLE ledger (id int, region text, amount int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE ledger_eu (gone int, amount int, region text NOT NULL, dropped int, id int NOT NULL);
ALTER TABLE ledger_eu DROP gone, DROP dropped;
ALTER TABLE ledger ATTACH PARTITION ledger_eu FOR VALUES IN ('eu');
CREATE TABLE ledger_us PARTITION OF ledger FOR VALUES IN ('us');
CREATE TABLE ledger_rest PARTITION OF ledger DEFAULT PARTITION BY RANGE (id);
CREATE TABLE ledger_rest_low PARTITION OF ledger_rest FOR VALUES FROM (0) TO (100);
INSERT INTO ledger VALUES (1, 'eu', 100), (2, 'us', 100), (3, 'no', 100);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
-- Attached when the guard is there already, in its own column order too.
CREATE TABLE ledger_asia (region text NOT NULL, amount int, id int NOT NULL);
INSERT INTO ledger_asia VALUES ('asia', 100, 5);
ALTER TABLE ledger ATTACH PARTITION ledger_asia FOR VALUES IN ('asia');
SELECT string_agg(tgrelid::regclass::text, ', ' ORDER BY tgrelid::regclass::text COLLATE "C") AS have_the_trigger FROM pg_trigger WHERE tgname = 'zz_guard';

SELECT path, t.* FROM (VALUES
  ('INSERT, partitioned table', $$INSERT INTO ledger VALUES (4, 'eu', 0)$$, '{path:4}'::text[]),
  ('INSERT into a partition', 'INSERT INTO ledger_eu(id, region) VALUES (4, ''eu'')', '{path:4}'),
  ('COPY, partitioned table', $$COPY ledger FROM PROGRAM 'printf "4\tus\t0\n"'$$, '{path:4}'),
  ('UPDATE, partitioned table', 'UPDATE ledger SET amount = 0 WHERE id = 1', '{path:1}'),
  ('UPDATE, sub-partition', 'UPDATE ledger SET amount = 0 WHERE id = 3', '{path:3}'),
  ('UPDATE of a partition', 'UPDATE ledger_us SET amount = 0', '{path:2}'),
  ('DELETE, partitioned table', 'DELETE FROM ledger WHERE id = 2', '{path:2}'),
  ('ON CONFLICT DO UPDATE, partitioned table', 'INSERT INTO ledger VALUES (1, ''eu'', 0) ON CONFLICT (id, region) DO UPDATE SET amount = 0', '{path:1}'),
  ('MERGE, partitioned table', 'MERGE INTO ledger l USING (VALUES (1)) v(i) ON l.id = i WHEN MATCHED THEN UPDATE SET amount = 0', '{path:1}'),
  ('UPDATE of a partition attached later', 'UPDATE ledger SET amount = 0 WHERE id = 5', '{path:5}'),
  ('INSERT into a partition attached later', 'INSERT INTO ledger VALUES (4, ''asia'', 0)', '{path:4}'),
  ('row moves to another partition', 'UPDATE ledger SET region = ''us'' WHERE id = 1', '{path:1}'),
  ('row moves to a partition attached later', 'UPDATE ledger SET region = ''asia'' WHERE id = 1', '{path:1}'),
  ('row moves to a sub-partition', 'UPDATE ledger SET region = ''no'' WHERE id = 1', '{path:1}'),
  ('MERGE moves a row', 'MERGE INTO ledger l USING (VALUES (1)) v(i) ON l.id = i WHEN MATCHED THEN UPDATE SET region = ''us''', '{path:1}'),
  ('row moves and changes its key', 'UPDATE ledger SET region = ''us'', id = 4 WHERE id = 1', '{path:1,path:4}'),
  ('row moves, only its old key pinned', 'UPDATE ledger SET region = ''us'', id = 4 WHERE id = 1', '{path:1}'),
  ('row moves, only its new key pinned', 'UPDATE ledger SET region = ''us'', id = 4 WHERE id = 1', '{path:4}'),
  ('rows of three partitions', 'UPDATE ledger SET amount = 0', '{path:1,path:2,path:3,path:5}'),
  ('rows of three partitions, one key not pinned', 'UPDATE ledger SET amount = 0', '{path:1,path:2,path:3}'),
-- Disabled at the root it is disabled everywhere. A detached partition loses it.
  ('DISABLE TRIGGER, partitioned table', 'ALTER TABLE ledger DISABLE TRIGGER zz_guard; UPDATE ledger_us SET amount = 0', '{path:2}'),
  ('DISABLE and ENABLE TRIGGER, partitioned table', 'ALTER TABLE ledger DISABLE TRIGGER zz_guard; ALTER TABLE ledger ENABLE TRIGGER zz_guard; UPDATE ledger_us SET amount = 0', '{path:2}'),
  ('partition after DETACH', 'ALTER TABLE ledger DETACH PARTITION ledger_us; UPDATE ledger_us SET amount = 0', '{path:2}'),
  ('DROP of a partition', 'DROP TABLE ledger_us', '{path:2}'),
  ('ATTACH of a table with rows', 'CREATE TABLE more (LIKE ledger); INSERT INTO more VALUES (4, ''more'', 0); ALTER TABLE ledger ATTACH PARTITION more FOR VALUES IN (''more'')', '{path:4}')
  ) p(path, statement, keys), try_path(statement, VARIADIC keys) t;

-- PostgreSQL puts a TRUNCATE trigger on no partition.
CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON ledger
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('path:{id}');
SELECT path, t.* FROM (VALUES
  ('TRUNCATE, partitioned table', 'TRUNCATE ledger'),
  ('TRUNCATE of a partition without a trigger of its own', 'TRUNCATE ledger_us'),
  ('TRUNCATE of a partition with a trigger of its own', 'CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON ledger_us EXECUTE FUNCTION fenced_lock.guard(''path:{id}''); TRUNCATE ledger_us'),
  ('TRUNCATE, only a partition has the trigger', 'CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON ledger_us EXECUTE FUNCTION fenced_lock.guard(''path:{id}''); DROP TRIGGER zz_guard_truncate ON ledger; TRUNCATE ledger')
  ) p(path, statement), try_path(statement, 'path:2') t;

-- The region as part of the key: a move changes the key.
CREATE TABLE orders (region text, id int, state text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE orders_eu PARTITION OF orders FOR VALUES IN ('eu');
CREATE TABLE orders_us (id int NOT NULL, state text, region text NOT NULL);
ALTER TABLE orders ATTACH PARTITION orders_us FOR VALUES IN ('us');
INSERT INTO orders VALUES ('eu', 1, 'new');
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON orders
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('order:{region}:{id}');
SELECT count(grant_key(k)) AS granted FROM unnest('{order:eu:1,order:us:1}'::text[]) k;
SELECT path, t.* FROM (VALUES
  ('composite key', 'UPDATE orders SET state = ''paid''', '{order:eu:1}'::text[]),
  ('composite key, row moves', 'UPDATE orders SET region = ''us''', '{order:eu:1,order:us:1}'),
  ('composite key, row moves, only its old key pinned', 'UPDATE orders SET region = ''us''', '{order:eu:1}'),
  ('composite key, row moves, only its new key pinned', 'UPDATE orders SET region = ''us''', '{order:us:1}')
  ) p(path, statement, keys), try_path(statement, VARIADIC keys) t;

-- Inheritance: a trigger is on the one table that it was made for.
CREATE TABLE base (id int, amount int);
CREATE TABLE child (note text) INHERITS (base);
CREATE TABLE second (amount int, more text, id int);
ALTER TABLE second INHERIT base;
INSERT INTO base VALUES (1, 100);
INSERT INTO child VALUES (2, 100);
INSERT INTO second VALUES (100, '', 3);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON base
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON base
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('path:{id}');
SELECT path, t.* FROM (VALUES
  ('inheritance parent, its own row', 'UPDATE base SET amount = 0 WHERE id = 1', 'path:1'),
  ('inheritance child without a trigger, through its parent', 'UPDATE base SET amount = 0 WHERE id = 2', 'path:2'),
  ('inheritance child without a trigger', 'DELETE FROM child', 'path:2'),
  ('TRUNCATE of an inheritance parent', 'TRUNCATE base', 'path:1'),
  ('TRUNCATE of an inheritance child without a trigger', 'TRUNCATE child', 'path:2')
  ) p(path, statement, key), try_path(statement, key) t;
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON child
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON second
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
SELECT path, t.* FROM (VALUES
  ('inheritance child, through its parent', 'UPDATE base SET amount = 0 WHERE id = 2', '{path:2}'::text[]),
  ('inheritance child', 'DELETE FROM child', '{path:2}'),
  ('inheritance child of another column order', 'UPDATE base SET amount = 0 WHERE id = 3', '{path:3}'),
  ('inheritance parent and children', 'UPDATE base SET amount = 0', '{path:1,path:2,path:3}'),
  ('inheritance parent and children, one key not pinned', 'UPDATE base SET amount = 0', '{path:1,path:2}')
  ) p(path, statement, keys), try_path(statement, VARIADIC keys) t;
RESET search_path;
\set ECHO none
\i :abs_srcdir/sql/include/attempt_end.sql
\set ECHO all
