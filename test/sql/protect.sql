--
-- protect and unprotect: which triggers they make, on which tables, and what
-- they refuse.
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
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
-- Under a pin of the key, in a transaction whose writes are undone.
CREATE FUNCTION pinned(key text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  answer text;
BEGIN
  BEGIN
    PERFORM fenced_lock.acquire(key);
    answer := outcome(statement);
    RAISE EXCEPTION 'undo';
  EXCEPTION WHEN raise_exception THEN
    RETURN answer;
  END;
END $$;
-- The triggers of a table and of what belongs to it.
CREATE FUNCTION triggers(pattern text) RETURNS TABLE (relation regclass, trigger name, definition text) LANGUAGE sql AS $$
  SELECT tgrelid::regclass, tgname, regexp_replace(pg_get_triggerdef(oid, true), '^CREATE TRIGGER \S+ (.*) ON \S+ ', '\1 ')
    FROM pg_trigger WHERE tgrelid::regclass::text LIKE pattern ORDER BY tgrelid::regclass::text, tgname
$$;

-- Without options: UPDATE, DELETE and TRUNCATE.
CREATE TABLE plain (id int PRIMARY KEY, balance int, updated_at timestamptz);
INSERT INTO plain VALUES (1, 10), (2, 20);
SELECT fenced_lock.protect('plain', 'plain:{id}');
SELECT * FROM triggers('plain');
SELECT statement, outcome(statement), pinned('plain:1', statement) AS pinned FROM (VALUES
  ('UPDATE plain SET balance = 11 WHERE id = 1'),
  ('UPDATE plain SET balance = 11'),
  ('DELETE FROM plain WHERE id = 1'),
  ('TRUNCATE plain')) v(statement);
SELECT pinned('plain:2', 'INSERT INTO plain VALUES (3, 30)') AS insert_goes_free;
-- A second time.
SELECT fenced_lock.protect('plain', 'plain:{id}');
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''other:{id}'', on_insert => true)');
-- Undone by a rollback, as all DDL.
BEGIN;
SELECT fenced_lock.unprotect('plain');
UPDATE plain SET balance = 0 WHERE id = 1;
ROLLBACK;
SELECT outcome('UPDATE plain SET balance = 0 WHERE id = 1');
-- Undone for good.
SELECT fenced_lock.unprotect('plain');
SELECT fenced_lock.unprotect('plain');
SELECT * FROM triggers('plain');
BEGIN;
SELECT fenced_lock.protect('plain', 'plain:{id}');
ROLLBACK;
SELECT outcome('UPDATE plain SET balance = 10 WHERE id = 1');

-- The options one by one; NULL is the default.
SELECT fenced_lock.protect('plain', 'plain:{id}', NULL, NULL, NULL, NULL, NULL);
SELECT trigger FROM triggers('plain');
SELECT fenced_lock.unprotect('plain');
SELECT fenced_lock.protect('plain', 'plain:{id}', on_insert => true, on_truncate => false);
SELECT * FROM triggers('plain');
SELECT statement, outcome(statement), pinned('plain:3', statement) AS pinned FROM (VALUES
  ('INSERT INTO plain VALUES (3, 30)'),
  ('INSERT INTO plain VALUES (3, 30) ON CONFLICT (id) DO UPDATE SET balance = 31')) v(statement);
BEGIN;
TRUNCATE plain;
ROLLBACK;
SELECT fenced_lock.unprotect('plain');

-- The stamp column: found, or added.
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'', ''fence'')');
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'', add_stamp => true)');
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'', ''balance'', add_stamp => true)');
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{no}'', ''fence'', add_stamp => true)');
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{no}'', ''xmin'', add_stamp => true)') AS template_first;
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'', ''xmin'', add_stamp => true)');
SELECT attname FROM pg_attribute WHERE attrelid = 'plain'::regclass AND attnum > 0 ORDER BY attnum;
SELECT fenced_lock.protect('plain', 'plain:{id}', 'fence', add_stamp => true);
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'plain'::regclass AND attname = 'fence';
SELECT fencing_token AS t FROM fenced_lock.acquire('plain:1') \gset
UPDATE plain SET balance = 12 FROM fenced_lock.pin('plain:1', :t) WHERE id = 1;
SELECT id, balance, fence = :t AS stamped FROM plain ORDER BY id;
-- It is left by unprotect, and found by the next protect.
SELECT fenced_lock.unprotect('plain');
SELECT fence = :t AS stamped FROM plain WHERE id = 1;
SELECT fenced_lock.protect('plain', 'plain:{id}', 'fence', add_stamp => true);
SELECT fenced_lock.unprotect('plain');

-- Some columns only: their values count, whoever changes them.
SELECT fenced_lock.protect('plain', 'plain:{id}', 'fence', '{balance}', on_insert => true);
SELECT * FROM triggers('plain');
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE plain SET updated_at = now()'),
  ('UPDATE plain SET balance = balance, id = id, fence = fence, updated_at = now()'),
  ('UPDATE plain SET balance = 13 WHERE id = 2'),
  ('UPDATE plain SET balance = NULL WHERE id = 2'),
  ('UPDATE plain SET id = 7 WHERE id = 2'),
  ('UPDATE plain SET fence = 7 WHERE id = 2'),
  ('UPDATE plain SET updated_at = now(), balance = balance + 1 WHERE id = 2'),
  ('DELETE FROM plain WHERE id = 2'),
  ('INSERT INTO plain VALUES (9)'),
  ('INSERT INTO plain VALUES (2) ON CONFLICT (id) DO UPDATE SET updated_at = now()'),
  ('TRUNCATE plain')) v(statement);
CREATE FUNCTION spend() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.balance := NEW.balance - 1; RETURN NEW; END$$;
CREATE TRIGGER spend BEFORE UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION spend();
SELECT outcome('UPDATE plain SET updated_at = now() WHERE id = 2') AS changed_by_a_trigger;
DROP TRIGGER spend ON plain;
SELECT fenced_lock.unprotect('plain');
-- Named twice, or part of the template or the stamp: said once.
SELECT fenced_lock.protect('plain', 'plain:{id}', 'fence', '{balance,balance,id,fence}');
SELECT definition FROM triggers('plain') WHERE trigger LIKE '%update';
SELECT fenced_lock.unprotect('plain');
SELECT EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i') AS icu \gset
\if :icu
CREATE COLLATION ignore_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
\else
-- A PostgreSQL without ICU has no such collation.
CREATE COLLATION ignore_case FROM "C";
\endif
CREATE DOMAIN amount AS numeric CHECK (VALUE >= 0);
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b int);
CREATE TABLE kinds (id int, name text COLLATE ignore_case, v varchar(5), c char(3), a int[], d amount, m mood, r pair, at timestamptz, b bytea, jb jsonb,
  j json, x xml, p point, ja json[], bx box, twice int GENERATED ALWAYS AS (id * 2) STORED, "Odd "" {N" int);
INSERT INTO kinds (id, name) VALUES (1, 'a');
SELECT fenced_lock.protect('kinds', 'kinds:{name}', NULL, '{v,c,a,d,m,r,at,b,jb,"Odd \" {N"}');
SELECT CASE WHEN :'icu' THEN replace(definition, '(new.name COLLATE "C") IS DISTINCT FROM (old.name COLLATE "C")', '(bytes of name)')
            ELSE replace(definition, 'new.name IS DISTINCT FROM old.name', '(bytes of name)') END AS definition
  FROM triggers('kinds') WHERE trigger LIKE '%update';
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE kinds SET j = ''{}'', id = 2'),
  ('UPDATE kinds SET name = ''A'''),
  ('UPDATE kinds SET v = ''x'''),
  ('UPDATE kinds SET c = ''x'''),
  ('UPDATE kinds SET a = ''{1}'''),
  ('UPDATE kinds SET d = 1'),
  ('UPDATE kinds SET m = ''sad'''),
  ('UPDATE kinds SET r = (1, 2)'),
  ('UPDATE kinds SET at = now()'),
  ('UPDATE kinds SET b = ''x'''),
  ('UPDATE kinds SET jb = ''{}'''),
  ('UPDATE kinds SET "Odd "" {N" = 1')) v(statement);
SELECT fenced_lock.unprotect('kinds');
SELECT columns, outcome(format('SELECT fenced_lock.protect(''kinds'', ''kinds:{id}'', NULL, %s)', columns)) FROM (VALUES
  ('''{}'''), ('''{NULL}'''), ('''{{v},{c}}'''), ('''{nothing}'''), ('''{V}'''), ('''{ctid}'''), ('''{""}'''),
  ('''{v,j}'''), ('''{x}'''), ('''{p}'''), ('''{ja}'''), ('''{bx}'''), ('''{twice}''')) v(columns);
-- A type whose own "=" is not PostgreSQL's: a restored dump would not find it.
BEGIN;
CREATE TYPE whole;
CREATE FUNCTION whole_in(cstring) RETURNS whole LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION whole_out(whole) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE whole (input = whole_in, output = whole_out, like = int4);
CREATE FUNCTION whole_eq(whole, whole) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT AS 'int4eq';
CREATE OPERATOR = (leftarg = whole, rightarg = whole, function = whole_eq);
CREATE FUNCTION whole_hash(whole) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'hashint4';
CREATE OPERATOR CLASS whole_ops DEFAULT FOR TYPE whole USING hash AS OPERATOR 1 =, FUNCTION 1 whole_hash(whole);
ALTER TABLE kinds ADD COLUMN w whole;
SELECT outcome('SELECT fenced_lock.protect(''kinds'', ''kinds:{id}'', NULL, ''{w}'')');
ROLLBACK;

-- Arguments.
SELECT arguments, outcome(format('SELECT fenced_lock.protect(%s)', arguments)) FROM (VALUES
  ('NULL, ''x:{id}'''),
  ('''kinds'', NULL'),
  ('''kinds'', ''x:{nothing}'''),
  ('''kinds'', ''x:{at}'''),
  ('''kinds'', ''x:{twice}'''),
  ('''kinds'', ''x:{'''),
  ('''kinds'', ''x:{id}'', ''nothing'''),
  ('''kinds'', ''x:{id}'', ''id'''),
  ('0, ''x:{id}'''),
  ('4294967295, ''x:{id}''')) v(arguments);
SELECT * FROM triggers('kinds');
SELECT outcome('SELECT fenced_lock.unprotect(NULL)'), outcome('SELECT fenced_lock.unprotect(0)');
BEGIN READ ONLY;
SELECT fenced_lock.protect('kinds', 'kinds:{id}');
ROLLBACK;
BEGIN READ ONLY;
SELECT fenced_lock.unprotect('kinds');
ROLLBACK;
-- Names and templates are quoted.
CREATE SCHEMA "Odd ""Schema";
CREATE TABLE "Odd ""Schema"."The 'Table" ("Id { '""\" int PRIMARY KEY, "Brace }" int);
SELECT fenced_lock.protect('"Odd ""Schema"."The ''Table"', $$it's \ "{{" {Id { '"\}$$, $$Fence'"$$, ARRAY['Brace }'], add_stamp => true);
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = '"Odd ""Schema"."The ''Table"'::regclass ORDER BY tgname;
INSERT INTO "Odd ""Schema"."The 'Table" VALUES (1);
SELECT outcome(format('UPDATE %I.%I SET %I = 2', 'Odd "Schema', 'The ''Table', 'Brace }'));
SELECT fenced_lock.unprotect('"Odd ""Schema"."The ''Table"');
DROP TABLE "Odd ""Schema"."The 'Table";

-- What is no table of the caller's.
CREATE VIEW a_view AS SELECT id FROM plain;
CREATE MATERIALIZED VIEW a_matview AS SELECT id FROM plain;
CREATE SEQUENCE a_sequence;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE a_foreign_table (id int) SERVER nowhere;
CREATE TABLE mixed (id int) PARTITION BY LIST (id);
CREATE FOREIGN TABLE mixed_1 PARTITION OF mixed FOR VALUES IN (1) SERVER nowhere;
CREATE TABLE heirs (id int);
CREATE FOREIGN TABLE heirs_1 () INHERITS (heirs) SERVER nowhere;
SELECT relation, outcome(format('SELECT fenced_lock.protect(%L, %L)', relation, 'x')),
       outcome(format('SELECT fenced_lock.unprotect(%L)', relation)) AS unprotect FROM (VALUES
  ('a_view'), ('a_matview'), ('a_sequence'), ('plain_pkey'), ('a_foreign_table'), ('mixed'), ('heirs'),
  ('pair'), ('pg_catalog.pg_class'), ('fenced_lock.lock_row'), ('fenced_lock.locks')) v(relation);
-- A foreign partition that comes later does not keep the guards there.
BEGIN;
DROP FOREIGN TABLE mixed_1;
SELECT fenced_lock.protect('mixed', 'mixed:{id}');
CREATE FOREIGN TABLE mixed_1 PARTITION OF mixed FOR VALUES IN (1) SERVER nowhere;
SELECT fenced_lock.unprotect('mixed');
SELECT * FROM triggers('mixed%');
ROLLBACK;
CREATE ROLE fl_protector;
GRANT ALL ON plain TO fl_protector;
GRANT CREATE ON SCHEMA public TO fl_protector;
SELECT fenced_lock.protect('plain', 'plain:{id}');
SET ROLE fl_protector;
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'')') AS before_allow;
RESET ROLE;
SELECT fenced_lock.allow('fl_protector');
SET ROLE fl_protector;
SELECT outcome('SELECT fenced_lock.protect(''plain'', ''plain:{id}'')'), outcome('SELECT fenced_lock.unprotect(''plain'')');
-- With the caller's rights: one's own table, and no superuser's help.
CREATE TABLE own (id int);
SELECT fenced_lock.protect('own', 'own:{id}', 'fence', add_stamp => true);
SELECT fenced_lock.unprotect('own');
DROP TABLE own;
-- A temporary table is a table.
CREATE TEMP TABLE fleeting (id int);
SELECT fenced_lock.protect('fleeting', 'fleeting:{id}');
SELECT outcome('DELETE FROM fleeting'), regexp_replace(outcome('TRUNCATE fleeting'), '_\d+', '_N') AS outcome;
RESET ROLE;
SELECT fenced_lock.unprotect('plain');
SELECT fenced_lock.disallow('fl_protector');
DROP OWNED BY fl_protector;
DROP ROLE fl_protector;

-- Partitions, on all levels: row triggers are cloned, TRUNCATE's are made.
CREATE TABLE ledger (id int, region text, amount int, fence bigint) PARTITION BY LIST (region);
CREATE TABLE ledger_eu (fence bigint, gone int, amount int, region text, id int) PARTITION BY RANGE (id);
ALTER TABLE ledger_eu DROP COLUMN gone;
ALTER TABLE ledger ATTACH PARTITION ledger_eu FOR VALUES IN ('eu');
CREATE TABLE ledger_eu_1 PARTITION OF ledger_eu FOR VALUES FROM (1) TO (1000);
CREATE TABLE ledger_us PARTITION OF ledger FOR VALUES IN ('us');
INSERT INTO ledger VALUES (1, 'eu', 10), (2, 'us', 20);
SELECT fenced_lock.protect('ledger', 'ledger:{id}', 'fence', '{amount}');
SELECT * FROM triggers('ledger%');
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE ledger SET amount = 0 WHERE id = 1'),
  ('UPDATE ledger_eu SET amount = 0'),
  ('UPDATE ledger_eu_1 SET amount = 0'),
  ('UPDATE ledger_eu_1 SET amount = amount'),
  ('UPDATE ledger SET region = ''us'' WHERE id = 1'),
  ('DELETE FROM ledger_us'),
  ('TRUNCATE ledger'),
  ('TRUNCATE ledger_eu'),
  ('TRUNCATE ledger_eu_1'),
  ('TRUNCATE ledger_us')) v(statement);
-- A partition is protected with its table, and not apart from it.
SELECT outcome('SELECT fenced_lock.protect(''ledger_us'', ''ledger:{id}'')'),
       outcome('SELECT fenced_lock.unprotect(''ledger_us'')'),
       outcome('SELECT fenced_lock.unprotect(''ledger_eu'')');
SELECT fenced_lock.unprotect('ledger');
SELECT * FROM triggers('ledger%');
SELECT fenced_lock.protect('ledger_eu', 'eu:{id}');
SELECT outcome('SELECT fenced_lock.protect(''ledger'', ''ledger:{id}'')') AS a_part_is_protected_already;
SELECT fenced_lock.unprotect('ledger');
SELECT * FROM triggers('ledger%');
-- A stamp that some level is partitioned by.
SELECT outcome('SELECT fenced_lock.protect(''ledger'', ''x'', ''region'')');
CREATE TABLE odd (id int8, region text, fence int8) PARTITION BY LIST (region);
CREATE TABLE odd_eu PARTITION OF odd FOR VALUES IN ('eu') PARTITION BY RANGE (id);
SELECT outcome('SELECT fenced_lock.protect(''odd'', ''x'', ''id'')');
-- A stamp that is added is added everywhere; not to a partition alone.
SELECT outcome('SELECT fenced_lock.protect(''odd_eu'', ''odd:{id}'', ''stamp'', add_stamp => true)');
SELECT fenced_lock.protect('odd', 'odd:{id}', 'stamp', add_stamp => true);
SELECT attrelid::regclass FROM pg_attribute WHERE attname = 'stamp' AND attrelid IN ('odd'::regclass, 'odd_eu'::regclass) ORDER BY 1;
-- Detached, it keeps the TRUNCATE trigger, and can be rid of it.
ALTER TABLE odd DETACH PARTITION odd_eu;
SELECT trigger FROM triggers('odd_eu');
SELECT fenced_lock.unprotect('odd_eu');
-- A partition that comes later.
CREATE TABLE odd_us PARTITION OF odd FOR VALUES IN ('us');
SELECT trigger FROM triggers('odd_us');
-- One with guards of its own is not attached; TRUNCATE's alone is no hindrance.
CREATE TABLE odd_cn (id int8, region text, fence int8, stamp int8);
SELECT fenced_lock.protect('odd_cn', 'cn:{id}');
SELECT outcome('ALTER TABLE odd ATTACH PARTITION odd_cn FOR VALUES IN (''cn'')');
SELECT fenced_lock.unprotect('odd_cn');
SELECT outcome('ALTER TABLE odd ATTACH PARTITION odd_cn FOR VALUES IN (''cn'')');
ALTER TABLE odd DETACH PARTITION odd_us;
SELECT outcome('ALTER TABLE odd ATTACH PARTITION odd_us FOR VALUES IN (''us'')');
-- While the statement itself reads the table, or its transaction has written.
BEGIN;
CREATE TABLE busy (id int);
INSERT INTO busy VALUES (1), (2);
SELECT outcome('SELECT fenced_lock.protect(''busy'', ''busy:{id}'', ''fence'', add_stamp => true) FROM busy LIMIT 1') AS read_at_once;
SELECT fenced_lock.protect('busy', 'busy:{id}', 'fence', add_stamp => true);
SELECT outcome('UPDATE busy SET id = 1');
ROLLBACK;

-- Inheritance: both kinds on every child.
CREATE TABLE parent (id int, amount int);
CREATE TABLE child (more int) INHERITS (parent);
CREATE TABLE grandchild () INHERITS (child);
INSERT INTO grandchild VALUES (1, 10);
SELECT fenced_lock.protect('parent', 'parent:{id}', columns => '{amount}');
SELECT relation, trigger FROM triggers('%') WHERE relation::text IN ('parent', 'child', 'grandchild') ORDER BY 1, 2;
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE parent SET amount = 0'), ('UPDATE grandchild SET amount = 0'), ('DELETE FROM child'), ('TRUNCATE grandchild'), ('TRUNCATE ONLY child')) v(statement);
SELECT fenced_lock.unprotect('parent');
SELECT count(*) FROM triggers('%child');

-- unprotect drops what protect makes, and nothing else.
CREATE TRIGGER by_hand BEFORE UPDATE ON parent FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('parent:{id}');
CREATE TRIGGER "~fenced_lock_update" BEFORE UPDATE ON child FOR EACH ROW EXECUTE FUNCTION spend();
SELECT fenced_lock.unprotect('parent');
SELECT relation, trigger FROM triggers('%') WHERE relation::text IN ('parent', 'child');
-- Somebody else's trigger of such a name.
SELECT outcome('SELECT fenced_lock.protect(''parent'', ''parent:{id}'')');
SELECT relation, trigger FROM triggers('parent');
DROP TRIGGER "~fenced_lock_update" ON child;
DROP TRIGGER by_hand ON parent;

-- They fire after whatever has an ordinary name.
SELECT fenced_lock.protect('parent', 'parent:{id}');
INSERT INTO parent VALUES (1, 1);
CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := NEW.id + 1; RETURN NEW; END$$;
CREATE TRIGGER zzz_9_shift BEFORE UPDATE ON parent FOR EACH ROW EXECUTE FUNCTION shift();
SELECT pinned('parent:1', 'UPDATE ONLY parent SET amount = 2') AS key_changed_by_zzz;

-- The flush of a test suite: TRUNCATE's triggers are disabled, the others stay.
SELECT fenced_lock.protect('ledger', 'ledger:{id}');
DO $$
DECLARE
  t record;
BEGIN
  FOR t IN SELECT tgrelid::regclass AS relation, tgname FROM pg_trigger WHERE tgname = '~fenced_lock_truncate' LOOP
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER %I', t.relation, t.tgname);
  END LOOP;
END $$;
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE ledger SET amount = 0'), ('DELETE FROM ledger'), ('DELETE FROM parent'), ('TRUNCATE ledger, parent')) v(statement);

-- The extension is not dropped unseen, and CASCADE names what is left open.
DROP EXTENSION fenced_lock;
SET client_min_messages = notice;
BEGIN;
DROP EXTENSION fenced_lock CASCADE;
ROLLBACK;
SET client_min_messages = warning;
SELECT fenced_lock.unprotect('ledger'), fenced_lock.unprotect('parent'), fenced_lock.unprotect('odd');
DROP TABLE plain, kinds, mixed, heirs, ledger, odd, odd_eu, parent CASCADE;
DROP SCHEMA "Odd ""Schema";
DROP SEQUENCE a_sequence;
DROP FOREIGN DATA WRAPPER nowhere CASCADE;
DROP COLLATION ignore_case;
DROP DOMAIN amount;
DROP TYPE mood, pair;
DROP FUNCTION outcome, pinned, triggers, spend, shift;
