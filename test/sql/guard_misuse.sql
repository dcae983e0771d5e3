--
-- The guard attached or called in a way that it can't work in: a clear error.
--
\set SHOW_CONTEXT never
CREATE FUNCTION attach(timing text, arguments text, write text DEFAULT 'INSERT INTO victim VALUES (1)') RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TRIGGER misuse %s EXECUTE FUNCTION fenced_lock.guard(%s)', timing, arguments);
  EXECUTE write;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, SQLERRM);
END $$;
CREATE TABLE victim (id int, gone int, twice int GENERATED ALWAYS AS (id * 2) STORED, twice8 int8 GENERATED ALWAYS AS (id * 2) STORED, fence int8);
ALTER TABLE victim DROP COLUMN gone;
CREATE VIEW victim_view AS SELECT id FROM victim;

SELECT fenced_lock.guard();
SELECT timing, attach(timing, '''m:{id}''') FROM (VALUES
  ('AFTER INSERT ON victim FOR EACH ROW'),
  ('AFTER INSERT ON victim FOR EACH STATEMENT'),
  ('BEFORE INSERT ON victim FOR EACH STATEMENT'),
  ('BEFORE INSERT ON victim')) v(timing);
SELECT attach('INSTEAD OF INSERT ON victim_view FOR EACH ROW', '''m:{id}''', 'INSERT INTO victim_view VALUES (1)');
SELECT attach('AFTER TRUNCATE ON victim', '''m:{id}''', 'TRUNCATE victim');
SELECT attach('BEFORE TRUNCATE ON victim', '''m:{id}''', 'TRUNCATE victim');
SELECT attach('BEFORE TRUNCATE ON victim', '', 'TRUNCATE victim');
CREATE CONSTRAINT TRIGGER misuse AFTER INSERT ON victim DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('m:{id}');
INSERT INTO victim VALUES (1);
DROP TRIGGER misuse ON victim;
CREATE EVENT TRIGGER misuse ON ddl_command_start EXECUTE FUNCTION fenced_lock.guard();

SELECT arguments, attach('BEFORE INSERT ON victim FOR EACH ROW', arguments) FROM (VALUES
  (''),
  ('''m:{id}'', ''fence'', ''more'''),
  ('''m:{nothing}'''),
  ('''m:{ID}'''),
  ('''m:{gone}'''),
  ('''m:{........pg.dropped.2........}'''),
  ('''m:{ctid}'''),
  ('''m:{xmin}'''),
  ('''m:{}'''),
  ('''m:{id'''),
  ('''m:{'''),
  ('''m:{{'''),
  (''''''),
  ('''m:{twice}'''),
  ('''m:{id}'', ''nothing'''),
  ('''m:{id}'', ''gone'''),
  ('''m:{id}'', '''''),
  ('''m:{id}'', ''twice8'''),
  ('''m:{fence}'', ''fence'''),
  ('''m:{id}'', ''xmin''')) v(arguments);
SELECT attach('BEFORE INSERT ON victim FOR EACH ROW', string_agg(format('%L', i), ', ')) FROM generate_series(1, 99) i;

-- A stamp column that rows are partitioned by, also in an ancestor's key.
CREATE TABLE top (id int, fence int8) PARTITION BY RANGE (fence);
CREATE TABLE middle PARTITION OF top FOR VALUES FROM (0) TO (1000) PARTITION BY LIST (id);
CREATE TABLE leaf PARTITION OF middle FOR VALUES IN (1);
SELECT attach('BEFORE INSERT ON top FOR EACH ROW', '''m:{id}'', ''fence''', 'INSERT INTO top VALUES (1, 1)');
SELECT attach('BEFORE INSERT ON leaf FOR EACH ROW', '''m:{id}'', ''fence''', 'INSERT INTO top VALUES (1, 1)');
SELECT attach('BEFORE INSERT ON top FOR EACH ROW', '''m:{id}''', 'INSERT INTO top VALUES (1, 1)');

-- A guard outlives its columns: renamed or dropped, it refuses.
CREATE TABLE changing (id int, fence int8);
CREATE TRIGGER guard BEFORE INSERT ON changing FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('m:{id}', 'fence');
ALTER TABLE changing RENAME fence TO stamp;
INSERT INTO changing VALUES (1);
ALTER TABLE changing RENAME stamp TO fence;
ALTER TABLE changing RENAME id TO number;
INSERT INTO changing VALUES (1);

-- In an index, a generated column, a check: volatile functions are refused or just called.
CREATE TABLE hosts (id int, k text GENERATED ALWAYS AS (fenced_lock.renew('m', gen_random_uuid())::text) STORED);
CREATE INDEX ON changing ((fenced_lock.pin('m', number)));

-- Extensions with guards on tables are not dropped unseen.
DROP EXTENSION fenced_lock;
DROP TABLE victim CASCADE;
DROP TABLE top, changing;
DROP FUNCTION attach;
