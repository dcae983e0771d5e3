--
-- From a row to its key: which columns may name one, and how their values read.
--
\set SHOW_CONTEXT never
CREATE FUNCTION key_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION WHEN SQLSTATE 'LF101' THEN
  RETURN substring(SQLERRM FROM 'pin of key (".*"); this');
WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, SQLERRM);
END $$;
-- A table with one column of the type, guarded by it: the key of one value, and
-- whether a row passes under the pin of just that key.
CREATE FUNCTION try_type(type text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  insertion text := format('INSERT INTO typed VALUES (%L)', value);
  said text;
BEGIN
  EXECUTE format('CREATE TABLE typed (c %s)', type);
  CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON typed
    FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('type {c}');
  said := key_of(insertion);
  IF said LIKE '"%' THEN
    PERFORM fenced_lock.try_acquire('type ' || value, '1 min');
    EXECUTE insertion;
    said := said || ', written';
  END IF;
  RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
  RETURN said;
END $$;

CREATE TYPE mood AS ENUM ('sad', 'Über happy');
CREATE TYPE pair AS (a int, b int);
CREATE DOMAIN short_text AS text CHECK (length(value) < 10);
CREATE DOMAIN shorter_text AS short_text NOT NULL;
CREATE DOMAIN my_mood AS mood;
CREATE DOMAIN price AS numeric;
CREATE DOMAIN numbers AS int[];
SELECT type, try_type(type, value) FROM (VALUES
  ('smallint', '-7'),
  ('integer', '42'),
  ('bigint', '9223372036854775807'),
  ('text', 'a b'),
  ('text', 'Ä€😀'),
  ('text COLLATE "C"', 'x'),
  ('varchar', 'x '),
  ('varchar(3)', 'abc'),
  ('uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
  ('boolean', 'true'),
  ('mood', 'Über happy'),
  ('short_text', 'short'),
  ('shorter_text', 'short'),
  ('my_mood', 'sad')) v(type, value);
-- The text of these depends on settings, has several forms, or is no single one.
SELECT type, try_type(type, value) FROM (VALUES
  ('numeric', '1.0'), ('numeric(10,0)', '1'), ('price', '1'), ('money', '1'), ('real', '1'), ('double precision', '1'),
  ('char(4)', 'x'), ('"char"', 'x'), ('name', 'x'), ('bytea', 'x'), ('bit(1)', '1'), ('varbit', '1'),
  ('date', '2000-01-01'), ('time', '12:00'), ('timetz', '12:00'), ('timestamp', '2000-01-01'), ('timestamptz', '2000-01-01'), ('interval', '1 h'),
  ('json', '1'), ('jsonb', '1'), ('inet', '::1'), ('cidr', '::1'), ('macaddr', '00:00:00:00:00:00'),
  ('oid', '1'), ('regclass', 'pg_class'), ('xid8', '1'), ('pg_lsn', '0/0'), ('point', '(0,0)'), ('int4range', '[1,2)'), ('tsvector', 'x'),
  ('int[]', '{1}'), ('text[]', '{x}'), ('numbers', '{1}'), ('mood[]', '{sad}'), ('pair', '(1,2)')) v(type, value);

-- Several columns; names that need quotes; columns that were dropped before them.
CREATE TABLE kinds (gone_1 int, i int, gone_2 text, t text, "Odd {Name" int, "with ""quotes""" int, "größe" int, u uuid, b bool);
ALTER TABLE kinds DROP gone_1, DROP gone_2;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON kinds FOR EACH ROW
  EXECUTE FUNCTION fenced_lock.guard('{{{i}:{t}:{Odd {Name}:{with "quotes"}:{größe}:{u}:{b}:{i}}}');
SELECT key_of($$INSERT INTO kinds VALUES (1, 'x', 2, 3, 4, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', false)$$);
SELECT key_of($$INSERT INTO kinds VALUES (1, '', 2, 3, 4, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'on')$$);
-- What stands in the row is what counts, after defaults and casts.
CREATE TABLE defaults (id int GENERATED ALWAYS AS IDENTITY, t varchar(3) DEFAULT 'abc', n int DEFAULT 7);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON defaults FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{id}/{t}/{n}');
SELECT key_of('INSERT INTO defaults DEFAULT VALUES');
SELECT key_of($$INSERT INTO defaults(t, n) VALUES ('x', 1.6)$$);
-- A column that was added when the rows were there already.
CREATE TABLE grown (id int);
INSERT INTO grown VALUES (1);
ALTER TABLE grown ADD region text DEFAULT 'eu';
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON grown FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{region}:{id}');
SELECT key_of('UPDATE grown SET id = 1');
SELECT key_of('DELETE FROM grown');

-- NULL names no key: such a row can't be written, changed or deleted.
CREATE TABLE nullable (region text, id int, v int);
INSERT INTO nullable VALUES ('eu', NULL, 1), (NULL, 1, 1), ('eu', 1, 1);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON nullable FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('null:{region}:{id}');
SELECT acquired FROM fenced_lock.try_acquire('null:eu:1');
BEGIN;
SELECT fenced_lock.pin('null:eu:1', fencing_token) FROM fenced_lock.locks WHERE key = 'null:eu:1';
SELECT statement, key_of(statement) FROM (VALUES
  ('INSERT INTO nullable(region) VALUES (''eu'')'),
  ('INSERT INTO nullable(id) VALUES (1)'),
  ('UPDATE nullable SET v = 2 WHERE id IS NULL'),
  ('UPDATE nullable SET id = 1 WHERE id IS NULL'),
  ('UPDATE nullable SET id = NULL WHERE id = 1 AND region = ''eu'''),
  ('DELETE FROM nullable WHERE region IS NULL'),
  ('DELETE FROM nullable'),
  ('UPDATE nullable SET v = 2 WHERE region = ''eu'' AND id = 1')) v(statement);
ROLLBACK;

-- A row's key has a key's bounds: 1 to 1024 bytes.
CREATE TABLE texts (t text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON texts FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{t}');
SELECT key_of($$INSERT INTO texts VALUES ('')$$);
SELECT length(key_of($$INSERT INTO texts VALUES (repeat('x', 1024))$$)) - 2 AS longest;
SELECT key_of($$INSERT INTO texts VALUES (repeat('x', 1025))$$);
SELECT key_of($$INSERT INTO texts VALUES (repeat('x', 1000000))$$);
SELECT key_of($$INSERT INTO texts VALUES (repeat('é', 513))$$);
-- A template without columns puts the whole table under one key.
CREATE TABLE one_key (v text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON one_key FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('the {{config}');
SELECT key_of('INSERT INTO one_key VALUES (1)');
-- A column whose type is changed names another key, or none.
ALTER TABLE texts ALTER t TYPE bytea USING ''::bytea;
SELECT key_of($$INSERT INTO texts VALUES ('')$$);
-- An enum's value reads as it is named now.
CREATE TABLE moods (m mood);
INSERT INTO moods VALUES ('sad');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON moods FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('mood:{m}');
SELECT key_of('DELETE FROM moods');
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
SELECT key_of('DELETE FROM moods');

-- Settings do not change a key.
SET DateStyle = 'SQL, DMY';
SET extra_float_digits = -15;
SET lc_numeric = 'C';
SET bytea_output = 'escape';
SELECT key_of($$INSERT INTO kinds VALUES (1, 'x', 2, 3, 4, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', false)$$);

DROP TABLE kinds, defaults, grown, nullable, texts, one_key, moods;
DROP DOMAIN short_text, shorter_text, my_mood, price, numbers CASCADE;
DROP TYPE mood, pair;
DROP FUNCTION key_of, try_type;
RESET DateStyle;
RESET extra_float_digits;
RESET lc_numeric;
RESET bytea_output;
