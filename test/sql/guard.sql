--
-- What a refusal says: all facts in one line, and in its fields; and that a
-- statement is refused as a whole. (Which writes are refused: paths*.sql.)
--
\set SHOW_CONTEXT never
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  rows bigint;
  at_schema text;
  at_table text;
BEGIN
  EXECUTE statement;
  GET DIAGNOSTICS rows = ROW_COUNT;
  RETURN format('%s rows', rows);
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS at_schema = SCHEMA_NAME, at_table = TABLE_NAME;
  RETURN format('%s (%s, %s): %s', SQLSTATE, at_schema, at_table, regexp_replace(SQLERRM, '\d{10,}', 'N', 'g'));
END $$;
CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 100) i;
CREATE TRIGGER wallets_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('guard:{id}');
CREATE TRIGGER wallets_truncate BEFORE TRUNCATE ON wallets
  FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('guard:{id}');
CREATE SCHEMA "Odd schema";
CREATE TABLE "Odd schema"."my ""table" (t text);
CREATE TRIGGER g BEFORE INSERT OR UPDATE OR DELETE ON "Odd schema"."my ""table" FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{t}');
CREATE TRIGGER g_truncate BEFORE TRUNCATE ON "Odd schema"."my ""table" EXECUTE FUNCTION fenced_lock.guard('{t}');
SELECT count(*) AS granted FROM generate_series(1, 99) i, fenced_lock.try_acquire('guard:' || i, '10 min') WHERE acquired;

-- Without a pin.
SELECT outcome('UPDATE wallets SET balance = 0 WHERE id = 7');
SELECT outcome('TRUNCATE wallets');
SELECT outcome($$INSERT INTO "Odd schema"."my ""table" VALUES (E'line\nbreak')$$);
SELECT outcome('TRUNCATE "Odd schema"."my ""table"');
-- With other pins: some of them are named.
BEGIN;
SELECT count(fenced_lock.pin(key, fencing_token)) FROM fenced_lock.locks WHERE key = 'guard:1';
SELECT outcome('DELETE FROM wallets WHERE id = 7');
SELECT count(fenced_lock.pin(key, fencing_token)) FROM fenced_lock.locks WHERE key LIKE 'guard:%';
SELECT regexp_replace(outcome('INSERT INTO wallets VALUES (101, 0)'), '"guard:\d+"(, "guard:\d+"){4} and', 'five keys and');
-- A hundred rows, one of which is not ours: nothing is skipped, nothing written.
SELECT regexp_replace(outcome('UPDATE wallets SET balance = 0'), ' pinned: .*', '');
SELECT outcome('UPDATE wallets SET balance = 1 WHERE id < 100');
COMMIT;
SELECT balance, count(*) FROM wallets GROUP BY balance ORDER BY balance;

-- Who may not read the columns of a key is not told it, but for its own INSERT.
CREATE ROLE fl_guard_blind;
GRANT INSERT, UPDATE, DELETE ON wallets TO fl_guard_blind;
SET ROLE fl_guard_blind;
SELECT outcome('UPDATE wallets SET balance = 0');
SELECT outcome('DELETE FROM wallets');
SELECT outcome('INSERT INTO wallets VALUES (101, 0)');
RESET ROLE;
GRANT SELECT (balance) ON wallets TO fl_guard_blind;
SET ROLE fl_guard_blind;
SELECT outcome('DELETE FROM wallets WHERE balance = 100');
RESET ROLE;
GRANT SELECT (id) ON wallets TO fl_guard_blind;
SET ROLE fl_guard_blind;
SELECT outcome('DELETE FROM wallets WHERE id = 7');
RESET ROLE;
-- Nor where row security may hide the row.
ALTER TABLE wallets ENABLE ROW LEVEL SECURITY;
CREATE POLICY blind ON wallets TO fl_guard_blind USING (true);
SET ROLE fl_guard_blind;
SELECT outcome('DELETE FROM wallets WHERE id = 7');
RESET ROLE;
DROP POLICY blind ON wallets;
ALTER TABLE wallets DISABLE ROW LEVEL SECURITY;
DROP OWNED BY fl_guard_blind;
DROP ROLE fl_guard_blind;

-- Delete a row and insert it anew: both under the pin, and not under an older.
SELECT fencing_token AS older, owner_token AS o FROM fenced_lock.try_acquire('guard:100') \gset
BEGIN;
SELECT fenced_lock.pin('guard:100', :older);
SELECT outcome('DELETE FROM wallets WHERE id = 100');
SELECT outcome('INSERT INTO wallets VALUES (100, 1)');
COMMIT;
SELECT fenced_lock.release('guard:100', :'o');
SELECT fencing_token AS newer, owner_token AS o FROM fenced_lock.try_acquire('guard:100') \gset
DELETE FROM wallets USING fenced_lock.pin('guard:100', :newer) WHERE id = 100;
SELECT outcome('INSERT INTO wallets VALUES (100, 1000)');
SELECT outcome(format('INSERT INTO wallets SELECT 100, 1000 FROM fenced_lock.pin(%L, %s)', 'guard:100', :older));
SELECT outcome(format('INSERT INTO wallets SELECT 100, 2 FROM fenced_lock.pin(%L, %s)', 'guard:100', :newer));
SELECT * FROM wallets WHERE id = 100;

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

DROP TABLE wallets, parts;
DROP SCHEMA "Odd schema" CASCADE;
DROP FUNCTION outcome;
