--
-- The guard: which writes it lets through, and what it writes itself.
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
CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL, fence bigint);
INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 5) i;
CREATE TRIGGER wallets_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('guard:{id}', 'fence');
CREATE TRIGGER wallets_truncate BEFORE TRUNCATE ON wallets
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('guard:{id}', 'fence');
SELECT fencing_token AS t1, owner_token AS o1 FROM fenced_lock.try_acquire('guard:1') \gset
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('guard:2') \gset
SELECT fencing_token AS t9, owner_token AS o9 FROM fenced_lock.try_acquire('guard:9') \gset

-- Without a pin: nothing.
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallets SET balance = 0 WHERE id = 1'),
  ('UPDATE wallets SET balance = balance WHERE id = 1'),
  ('UPDATE wallets SET balance = 0, fence = 999999999999999 WHERE id = 1'),
  ('DELETE FROM wallets WHERE id = 1'),
  ('INSERT INTO wallets VALUES (9, 0)'),
  ('INSERT INTO wallets VALUES (9, 0, 999999999999999)'),
  ('INSERT INTO wallets VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = 0'),
  ('MERGE INTO wallets w USING (VALUES (1)) v(id) ON w.id = v.id WHEN MATCHED THEN UPDATE SET balance = 0'),
  ('TRUNCATE wallets'),
  ('UPDATE wallets SET balance = 0 WHERE id = 77')) v(statement);
-- Under the key's pin.
BEGIN;
SELECT fenced_lock.pin('guard:1', :t1), fenced_lock.pin('guard:9', :t9);
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallets SET balance = balance - 10 WHERE id = 1'),
  ('UPDATE wallets SET balance = balance - 10 WHERE id = 1'),
  ('INSERT INTO wallets VALUES (9, 0)'),
  ('INSERT INTO wallets VALUES (9, 0) ON CONFLICT (id) DO UPDATE SET balance = 5'),
  ('INSERT INTO wallets VALUES (9, 0) ON CONFLICT (id) DO NOTHING'),
  ('MERGE INTO wallets w USING (VALUES (9)) v(id) ON w.id = v.id WHEN MATCHED THEN UPDATE SET balance = 6'),
  ('UPDATE wallets SET balance = 0 WHERE id = 2'),
  ('UPDATE wallets SET balance = 0'),
  ('UPDATE wallets SET id = 2 WHERE id = 1'),
  ('UPDATE wallets SET id = 1 WHERE id = 2'),
  ('UPDATE wallets SET id = 10 WHERE id = 9'),
  ('DELETE FROM wallets WHERE id = 2'),
  ('DELETE FROM wallets'),
  ('TRUNCATE wallets')) v(statement);
SELECT id, balance, CASE fence WHEN :t1 THEN 't1' WHEN :t9 THEN 't9' ELSE fence::text END AS stamp FROM wallets ORDER BY id;
SELECT outcome('DELETE FROM wallets WHERE id = 9');
COMMIT;
-- COPY is no way round.
COPY wallets FROM STDIN;
9	0	\N
\.
BEGIN;
SELECT fenced_lock.pin('guard:9', :t9);
COPY wallets FROM STDIN;
9	1	17
\.
COMMIT;
-- Every write is stamped by the guard, whatever the statement says.
SELECT id, balance, fence = :t9 AS stamped FROM wallets WHERE id = 9;
UPDATE wallets SET fence = 1 FROM fenced_lock.pin('guard:9', :t9) WHERE id = 9;
UPDATE wallets SET fence = NULL FROM fenced_lock.pin('guard:9', :t9) WHERE id = 9;
SELECT id, balance, fence = :t9 AS stamped FROM wallets WHERE id = 9;

-- A full-row save of a stale worker that has just re-read the row: no pin.
SELECT outcome(format('UPDATE wallets SET balance = %s, fence = %s WHERE id = 9', balance, fence)) FROM wallets WHERE id = 9;
-- A stamp above a current pin, written by a hand: refused, not overwritten.
ALTER TABLE wallets DISABLE TRIGGER wallets_guard;
UPDATE wallets SET fence = :t9 + 1000 WHERE id = 9;
ALTER TABLE wallets ENABLE TRIGGER wallets_guard;
SELECT outcome(format('UPDATE wallets SET balance = 3 FROM fenced_lock.pin(%L, %s) WHERE id = 9', 'guard:9', :t9));
SELECT outcome(format('DELETE FROM wallets USING fenced_lock.pin(%L, %s) WHERE id = 9', 'guard:9', :t9));
-- A stamp counts only while the row's key stays: 1 has the older token.
SELECT :t1 < :t9 AS older;
BEGIN;
SELECT fenced_lock.pin('guard:1', :t1), fenced_lock.pin('guard:9', :t9);
DELETE FROM wallets WHERE id = 1;
SELECT outcome('UPDATE wallets SET id = 1 WHERE id = 9');
SELECT id, fence = :t1 AS stamped FROM wallets WHERE id = 1;
ROLLBACK;

-- Multi-row statements fail as a whole.
BEGIN;
SELECT fenced_lock.pin('guard:1', :t1), fenced_lock.pin('guard:2', :t2);
SELECT outcome('UPDATE wallets SET balance = 1 WHERE id IN (1, 2)');
SELECT outcome('UPDATE wallets SET balance = 2 WHERE id IN (1, 2, 3)');
COMMIT;
SELECT id, balance FROM wallets WHERE id IN (1, 2, 3) ORDER BY id;

-- Cascades of foreign keys write too.
CREATE TABLE entries (wallet int REFERENCES wallets ON DELETE CASCADE ON UPDATE CASCADE, amount int);
CREATE TRIGGER entries_guard BEFORE INSERT OR UPDATE OR DELETE ON entries
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('entry:{wallet}');
SELECT fencing_token AS tent FROM fenced_lock.try_acquire('entry:2') \gset
INSERT INTO entries SELECT 2, 5 FROM fenced_lock.pin('entry:2', :tent);
SELECT outcome(format('DELETE FROM wallets USING fenced_lock.pin(%L, %s) WHERE id = 2', 'guard:2', :t2));
BEGIN;
SELECT fenced_lock.pin('guard:2', :t2), fenced_lock.pin('entry:2', :tent);
SELECT outcome('DELETE FROM wallets WHERE id = 2');
SELECT count(*) AS entries FROM entries;
-- Deleting a row and inserting it anew needs the pin again.
SELECT outcome('INSERT INTO wallets VALUES (2, 1)');
SELECT outcome('INSERT INTO wallets VALUES (1, 1)');
ROLLBACK;

-- Columns that may name a key, and how their values read.
CREATE TYPE mood AS ENUM ('sad', 'Über happy');
CREATE DOMAIN short_text AS text CHECK (length(value) < 10);
CREATE TABLE kinds (i2 int2, i4 int4, i8 int8, t text, v varchar(20), u uuid, b bool, e mood, d short_text, "Odd {Name" int);
CREATE TRIGGER kinds_guard BEFORE INSERT OR UPDATE OR DELETE ON kinds FOR EACH ROW
  EXECUTE FUNCTION fenced_lock.guard('k:{i2}:{i4}:{i8}:{t}:{v}:{u}:{b}:{e}:{d}:{Odd {Name}:{{x}}');
SELECT outcome($$INSERT INTO kinds VALUES (-1, 2, 3000000000, 'a b', 'Ä', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', true, 'Über happy', 'x', 7)$$);
SELECT outcome($$INSERT INTO kinds VALUES (-1, 2, 3, '', '', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', false, 'sad', 'x', 7)$$);
SELECT outcome($$INSERT INTO kinds (i2) VALUES (1)$$);
SELECT outcome($$INSERT INTO kinds VALUES (-1, 2, 3, repeat('x', 1024), '', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', false, 'sad', 'x', 7)$$);
-- A table under one key; a key that is the template's brace.
CREATE TABLE one_key (v text);
CREATE TRIGGER one_key_guard BEFORE INSERT OR UPDATE OR DELETE ON one_key FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('the {{config');
SELECT outcome('INSERT INTO one_key VALUES (1)');
SELECT fencing_token AS tc FROM fenced_lock.try_acquire('the {config') \gset
SELECT outcome(format('INSERT INTO one_key SELECT 1 FROM fenced_lock.pin(%L, %s)', 'the {config', :tc));
CREATE TABLE no_text (v text);
CREATE TRIGGER no_text_guard BEFORE INSERT ON no_text FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{v}');
SELECT outcome($$INSERT INTO no_text VALUES ('')$$);

-- Many rows of one key are checked as one, until the key or the pins change.
CREATE TABLE parts (part int, owner text, amount int);
INSERT INTO parts VALUES (1, 'ann', 0), (2, 'ann', 0), (3, 'ann', 0), (4, 'anna', 0), (5, 'ann', 0);
CREATE TRIGGER parts_guard BEFORE INSERT OR UPDATE OR DELETE ON parts FOR EACH ROW
  EXECUTE FUNCTION fenced_lock.guard('parts:{owner}');
SELECT fencing_token AS ta, owner_token AS oa FROM fenced_lock.try_acquire('parts:ann') \gset
BEGIN;
SELECT fenced_lock.pin('parts:ann', :ta);
SELECT outcome('UPDATE parts SET amount = 1 WHERE part < 4');
SELECT outcome('UPDATE parts SET amount = 2');
SELECT outcome('UPDATE parts SET owner = ''anna'' WHERE part = 3');
SELECT outcome('UPDATE parts SET owner = NULL WHERE part = 3');
SELECT outcome(format('UPDATE parts SET amount = fenced_lock.release(%L, %L)::int WHERE part = 1', 'parts:ann', :'oa'));
SELECT outcome(format('UPDATE parts SET amount = CASE part WHEN 2 THEN fenced_lock.release(%L, %L)::int ELSE 3 END WHERE part < 4', 'parts:ann', :'oa'));
SELECT outcome('UPDATE parts SET amount = 4 WHERE part < 4');
COMMIT;
SELECT * FROM parts ORDER BY part;

-- A stamp is found behind columns of any length and behind nulls.
CREATE TABLE stamped (a text, b int2, c text, fence bigint, d text, id int);
CREATE TRIGGER stamped_guard BEFORE INSERT OR UPDATE OR DELETE ON stamped FOR EACH ROW
  EXECUTE FUNCTION fenced_lock.guard('stamped', 'fence');
ALTER TABLE stamped DISABLE TRIGGER USER;
INSERT INTO stamped VALUES ('x', 1, 'yy', 1, 'zzz', 1), (repeat('x', 200), 2, repeat('y', 3), 2, NULL, 2),
  (NULL, NULL, NULL, 3, 'z', 3), ('', NULL, 'y', 4, '', 4), ('x', 5, 'y', NULL, 'z', 5), (NULL, 6, 'yyyyyyy', NULL, NULL, 6);
ALTER TABLE stamped ADD short int2 DEFAULT 9;
ALTER TABLE stamped ENABLE TRIGGER USER;
SELECT fencing_token AS ts FROM fenced_lock.try_acquire('stamped') \gset
CREATE INDEX stamped_fence ON stamped (fence);
UPDATE stamped SET id = id + 10 FROM fenced_lock.pin('stamped', :ts) RETURNING id, fence = :ts AS stamped;
SET enable_seqscan = off;
SELECT count(*) FROM stamped WHERE fence = :ts;
RESET enable_seqscan;
SELECT left(a, 3) AS a, b, c, fence = :ts AS stamped, d, id, short FROM stamped ORDER BY id;
INSERT INTO stamped SELECT 'x', 7, 'y', f, 'z', 17 FROM fenced_lock.pin('stamped', :ts), (VALUES (NULL), (1)) v(f);
SELECT a, b, c, fence = :ts AS stamped, d, id, short FROM stamped WHERE id = 17;

-- Partitions number their columns in their own way, and rows move.
CREATE TABLE ledger (id int, region text, amount int, fence bigint) PARTITION BY LIST (region);
CREATE TABLE ledger_eu (fence bigint, dropped int, amount int, region text, id int);
ALTER TABLE ledger_eu DROP COLUMN dropped;
ALTER TABLE ledger ATTACH PARTITION ledger_eu FOR VALUES IN ('eu');
CREATE TABLE ledger_us PARTITION OF ledger FOR VALUES IN ('us');
CREATE TRIGGER ledger_guard BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('ledger:{region}:{id}', 'fence');
SELECT fencing_token AS te FROM fenced_lock.try_acquire('ledger:eu:1') \gset
SELECT fencing_token AS tu FROM fenced_lock.try_acquire('ledger:us:1') \gset
SELECT outcome(format('INSERT INTO ledger SELECT 1, %L, 10 FROM fenced_lock.pin(%L, %s)', 'eu', 'ledger:eu:1', :te));
SELECT outcome('UPDATE ledger SET amount = 0');
SELECT outcome('UPDATE ledger_eu SET amount = 0');
SELECT outcome(format('UPDATE ledger SET region = %L FROM fenced_lock.pin(%L, %s)', 'us', 'ledger:eu:1', :te));
BEGIN;
SELECT fenced_lock.pin('ledger:eu:1', :te), fenced_lock.pin('ledger:us:1', :tu);
SELECT outcome('UPDATE ledger SET region = ''us''');
COMMIT;
SELECT tableoid::regclass, id, region, fence = :tu AS stamped FROM ledger;

DROP TABLE entries, wallets, kinds, one_key, no_text, parts, stamped, ledger;
DROP TYPE mood;
DROP DOMAIN short_text;
DROP FUNCTION outcome;
