--
-- Tokens from elsewhere: the mark of a key only rises, and guard_watermark
-- accepts the writes of a transaction that has admitted the row's key.
--
\set SHOW_CONTEXT never
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  rows bigint;
BEGIN
  EXECUTE statement;
  GET DIAGNOSTICS rows = ROW_COUNT;
  RETURN format('%s rows', rows);
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, regexp_replace(SQLERRM, '\d{10,}', 'N', 'g'));
END $$;
CREATE VIEW marks AS SELECT key, fencing_token FROM fenced_lock.watermark WHERE key LIKE 'mark:%' ORDER BY key;

-- First, equal, higher; then lower is stale, and the mark stays.
SELECT fenced_lock.admit('mark:1', 10);
SELECT fenced_lock.admit('mark:1', 10);
SELECT fenced_lock.admit('mark:1', 12);
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 11)');
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 1)');
SELECT * FROM marks;
-- Keys are exact text, and each has a mark of its own; tokens go to the last bigint.
SELECT fenced_lock.admit('mark:1 ', 1), fenced_lock.admit('MARK:1', 1);
SELECT fenced_lock.admit('mark:max', 9223372036854775807);
SELECT outcome('SELECT fenced_lock.admit(''mark:max'', 9223372036854775806)') ~ '^LF001: stale fencing token N' AS stale;
-- An equal token writes nothing; a higher one tells when.
SELECT xmin AS before, admitted_at AS at FROM fenced_lock.watermark WHERE key = 'mark:1' \gset
BEGIN;
SELECT fenced_lock.admit('mark:1', 12), pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
COMMIT;
SELECT xmin = :before AS unchanged, admitted_at = :'at' AS since_then FROM fenced_lock.watermark WHERE key = 'mark:1';
BEGIN;
SELECT pg_sleep(0.01);
SELECT fenced_lock.admit('mark:1', 13);
SELECT admitted_at > :'at' AS later, admitted_at > now() AS not_the_start_of_the_transaction FROM fenced_lock.watermark WHERE key = 'mark:1';
COMMIT;
SELECT count(*) AS rows FROM fenced_lock.watermark WHERE key = 'mark:1';

-- Bad arguments change nothing.
SELECT outcome(statement) FROM (VALUES
  ('SELECT fenced_lock.admit(NULL, 99)'),
  ('SELECT fenced_lock.admit(''mark:1'', NULL)'),
  ('SELECT fenced_lock.admit('''', 99)'),
  ('SELECT fenced_lock.admit(repeat(''x'', 1025), 99)'),
  ('SELECT fenced_lock.admit(''mark:1'', 0)'),
  ('SELECT fenced_lock.admit(''mark:1'', -1)')) v(statement);
SELECT fenced_lock.admit(repeat('x', 1024), 1);
BEGIN READ ONLY;
SELECT fenced_lock.admit('mark:1', 99);
ROLLBACK;
-- The message holds all facts in one line, whatever the key.
SELECT fenced_lock.admit(E'two\nlines', 2);
SELECT outcome($$SELECT fenced_lock.admit(E'two\nlines', 1)$$);
SELECT * FROM marks;

-- What is rolled back leaves the mark as it was and the key not admitted.
CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL, fence bigint);
INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 5) i;
CREATE TRIGGER wallets_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard_watermark('mark:{id}', 'fence');
CREATE TRIGGER wallets_truncate BEFORE TRUNCATE ON wallets
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard_watermark('mark:{id}', 'fence');
BEGIN;
SELECT fenced_lock.admit('mark:1', 20);
ROLLBACK;
SELECT * FROM marks WHERE key = 'mark:1';
SELECT outcome('UPDATE wallets SET balance = 0 WHERE id = 1');
BEGIN;
SAVEPOINT s;
SELECT fenced_lock.admit('mark:1', 20);
ROLLBACK TO s;
SELECT * FROM marks WHERE key = 'mark:1';
SELECT outcome('UPDATE wallets SET balance = 0 WHERE id = 1');
SELECT fenced_lock.admit('mark:1', 13);
SAVEPOINT s;
SELECT fenced_lock.admit('mark:1', 20);
UPDATE wallets SET balance = balance - 1 WHERE id = 1 RETURNING fence;
ROLLBACK TO s;
UPDATE wallets SET balance = balance - 1 WHERE id = 1 RETURNING fence;
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 21), 1/0');
UPDATE wallets SET balance = balance - 1 WHERE id = 1 RETURNING fence;
SAVEPOINT s;
SELECT fenced_lock.admit('mark:1', 14);
RELEASE s;
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 13)');
UPDATE wallets SET balance = balance - 1 WHERE id = 1 RETURNING fence;
COMMIT;
SELECT * FROM marks WHERE key = 'mark:1';

-- Without an admitted token: nothing.
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallets SET balance = balance WHERE id = 1'),
  ('UPDATE wallets SET balance = 0, fence = 999 WHERE id = 1'),
  ('DELETE FROM wallets WHERE id = 1'),
  ('INSERT INTO wallets VALUES (9, 0, 999)'),
  ('INSERT INTO wallets VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = 0'),
  ('MERGE INTO wallets w USING (VALUES (1)) v(id) ON w.id = v.id WHEN MATCHED THEN UPDATE SET balance = 0'),
  ('TRUNCATE wallets'),
  ('UPDATE wallets SET balance = 0 WHERE id = 77')) v(statement);
COPY wallets FROM STDIN;
9	0	\N
\.
-- With one.
BEGIN;
SELECT fenced_lock.admit('mark:1', 14), fenced_lock.admit('mark:9', 3);
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallets SET balance = balance - 10 WHERE id = 1'),
  ('UPDATE wallets SET balance = balance - 10, fence = 1 WHERE id = 1'),
  ('INSERT INTO wallets VALUES (9, 0, 999)'),
  ('INSERT INTO wallets VALUES (9, 0) ON CONFLICT (id) DO UPDATE SET balance = 5'),
  ('MERGE INTO wallets w USING (VALUES (9)) v(id) ON w.id = v.id WHEN MATCHED THEN UPDATE SET balance = 6'),
  ('UPDATE wallets SET balance = 0 WHERE id = 2'),
  ('UPDATE wallets SET balance = 0'),
  ('UPDATE wallets SET id = 2 WHERE id = 1'),
  ('UPDATE wallets SET id = 10 WHERE id = 9'),
  ('DELETE FROM wallets WHERE id = 2'),
  ('TRUNCATE wallets')) v(statement);
SELECT * FROM wallets WHERE id IN (1, 9) ORDER BY id;
SELECT outcome('DELETE FROM wallets WHERE id = 9');
COMMIT;
-- Many keys: some of them are named.
BEGIN;
SELECT bool_and(fenced_lock.admit('mark:' || i, 1)) FROM generate_series(100, 106) i;
SELECT outcome('UPDATE wallets SET balance = 0 WHERE id = 2') ~ '(, "mark:10\d"){4} and 2 more$' AS named;
ROLLBACK;
-- A full-row save of a stale worker that has just re-read the row.
SELECT outcome(format('UPDATE wallets SET balance = %s, fence = %s WHERE id = 1', balance, fence)) FROM wallets WHERE id = 1;
-- A stamp above the admitted token: of another kind, or the marks were lost.
DELETE FROM fenced_lock.watermark WHERE key = 'mark:1';
SELECT fenced_lock.admit('mark:1', 5);
UPDATE wallets SET balance = 0 FROM fenced_lock.admit('mark:1', 5) WHERE id = 1;
SELECT outcome('DELETE FROM wallets USING fenced_lock.admit(''mark:1'', 5) WHERE id = 1');
SELECT fenced_lock.admit('mark:1', 14);

-- One statement does a guarded write, once its token is admitted.  One that
-- raises the mark may have read what a former holder has overwritten since.
UPDATE wallets SET balance = balance - 10 FROM fenced_lock.admit('mark:1', 14) WHERE id = 1 RETURNING balance;
UPDATE wallets SET balance = balance - 10 WHERE id = 1 AND fenced_lock.admit('mark:1', 14) RETURNING balance;
INSERT INTO wallets SELECT 9, 7 FROM fenced_lock.admit('mark:9', 3) RETURNING id, fence;
DELETE FROM wallets USING fenced_lock.admit('mark:9', 3) WHERE id = 9 RETURNING id;
SELECT outcome('UPDATE wallets SET balance = 0 FROM fenced_lock.admit(''mark:1'', 13) WHERE id = 1');
SELECT outcome('UPDATE wallets SET balance = 0 FROM fenced_lock.admit(''mark:9'', 3) WHERE id = 1');
UPDATE wallets SET balance = 0 FROM fenced_lock.admit('mark:1', 15) WHERE id = 1;
SELECT * FROM marks WHERE key = 'mark:1';
SELECT fenced_lock.admit('mark:1', 15);
UPDATE wallets SET balance = balance - 10 FROM fenced_lock.admit('mark:1', 15) WHERE id = 1 RETURNING balance, fence;
-- In a block or a function each statement reads anew.
BEGIN;
SELECT fenced_lock.admit('mark:1', 16);
UPDATE wallets SET balance = balance - 10 WHERE id = 1 RETURNING balance, fence;
COMMIT;
DO $$
BEGIN
  PERFORM fenced_lock.admit('mark:1', 17);
  UPDATE wallets SET balance = balance - 10 WHERE id = 1;
END $$;
SELECT balance, fence FROM wallets WHERE id = 1;

-- A key that is admitted is not pinned, nor the other way round.
CREATE TABLE leased (id int PRIMARY KEY);
CREATE TRIGGER leased_guard BEFORE INSERT OR UPDATE OR DELETE ON leased
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('mark:{id}');
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('mark:2') \gset
SELECT fenced_lock.admit('mark:2', 7);
BEGIN;
SELECT fenced_lock.pin('mark:2', :t2);
SELECT outcome('INSERT INTO leased VALUES (2)'), outcome('UPDATE wallets SET balance = 0 WHERE id = 2');
ROLLBACK;
BEGIN;
SELECT fenced_lock.admit('mark:2', 7);
SELECT outcome('INSERT INTO leased VALUES (2)'), outcome('UPDATE wallets SET balance = 0 WHERE id = 2');
SELECT fenced_lock.pin('mark:2', :t2);
SELECT outcome('INSERT INTO leased VALUES (2)'), outcome('UPDATE wallets SET balance = 0 WHERE id = 2');
-- A release ends what it was pinned for, not what was admitted.
SELECT fenced_lock.release('mark:2', :'o2');
SELECT outcome('INSERT INTO leased VALUES (3)'), outcome('UPDATE wallets SET balance = 0 WHERE id = 2');
ROLLBACK;

-- From REPEATABLE READ on a mark is raised in a transaction of its own.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fenced_lock.admit('mark:1', 18);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fenced_lock.admit('mark:none', 18);
ROLLBACK;
SET default_transaction_isolation = 'repeatable read';
SELECT fenced_lock.admit('mark:1', 18);
BEGIN;
SELECT fenced_lock.admit('mark:1', 18);
UPDATE wallets SET balance = balance - 10 WHERE id = 1 RETURNING balance, fence;
COMMIT;
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 17)');
-- A mark that was raised long ago, and frozen since, is in every snapshot.
VACUUM (FREEZE) fenced_lock.watermark;
BEGIN;
SELECT fenced_lock.admit('mark:1', 18);
UPDATE wallets SET balance = balance - 1 WHERE id = 1 RETURNING balance, fence;
COMMIT;
-- Where no block was seen to begin, the guard sees it.
DO $$
BEGIN
  PERFORM fenced_lock.admit('mark:1', 19);
  UPDATE wallets SET balance = 0 WHERE id = 1;
END $$;
RESET default_transaction_isolation;
SELECT * FROM marks WHERE key = 'mark:1';

-- Marks that were restored beside others: the highest counts.
INSERT INTO fenced_lock.watermark VALUES ('mark:1', 30, now()), ('mark:1', 29, now());
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 29)');
SELECT fenced_lock.admit('mark:1', 31);
SELECT outcome('SELECT fenced_lock.admit(''mark:1'', 30)');
-- Changed by a hand in the very statement: an error, no crash.
SELECT outcome($$WITH hand AS (UPDATE fenced_lock.watermark SET admitted_at = now() WHERE key = 'mark:2' RETURNING key)
  SELECT fenced_lock.admit('mark:2', 32) FROM hand$$);

-- Attached or called in a way that it can't work in: as guard, under its own name.
SELECT fenced_lock.guard_watermark();
CREATE FUNCTION attach(timing text, arguments text, write text DEFAULT 'INSERT INTO victim VALUES (1)') RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TRIGGER misuse %s EXECUTE FUNCTION fenced_lock.guard_watermark(%s)', timing, arguments);
  EXECUTE write;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, SQLERRM);
END $$;
CREATE TABLE victim (id int, small int, exact numeric, fence int8);
SELECT attach('AFTER INSERT ON victim FOR EACH ROW', '''m:{id}''');
SELECT attach('BEFORE INSERT ON victim FOR EACH STATEMENT', '''m:{id}''');
SELECT attach('AFTER TRUNCATE ON victim', '''m:{id}''', 'TRUNCATE victim');
SELECT arguments, attach('BEFORE INSERT ON victim FOR EACH ROW', arguments) FROM (VALUES
  (''),
  ('''m:{id}'', ''fence'', ''more'''),
  ('''m:{nothing}'''),
  ('''m:{exact}'''),
  ('''m:{id}'', ''small'''),
  ('''m:{fence}'', ''fence''')) v(arguments);
SELECT outcome('INSERT INTO wallets (id) VALUES (NULL)');

-- DROP and CREATE EXTENSION, or a hand on the table, in a session that has used it.
BEGIN;
DROP EXTENSION fenced_lock CASCADE;
CREATE EXTENSION fenced_lock;
SELECT fenced_lock.admit('mark:1', 1);
ROLLBACK;
BEGIN;
CREATE INDEX by_lower_key ON fenced_lock.watermark (lower(key));
SELECT fenced_lock.admit('mark:1', 40);
ROLLBACK;
BEGIN;
DROP INDEX fenced_lock.watermark_newest_first;
SELECT fenced_lock.admit('mark:1', 40);
ROLLBACK;
REINDEX TABLE CONCURRENTLY fenced_lock.watermark;
VACUUM FULL fenced_lock.watermark;
SELECT fenced_lock.admit('mark:1', 40);

DROP VIEW marks;
DROP TABLE wallets, leased, victim;
DROP FUNCTION outcome, attach;
