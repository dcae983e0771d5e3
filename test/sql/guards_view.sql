--
-- View guards: every guard, and what keeps one from being in force.
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TABLE wallets (id int PRIMARY KEY, balance int, updated_at timestamptz, fence int8);
SELECT * FROM fenced_lock.guards;

-- What protect makes is in force.
SELECT fenced_lock.protect('wallets', 'wallet:{id}');
SELECT * FROM fenced_lock.guards;
SELECT fenced_lock.unprotect('wallets');
SELECT * FROM fenced_lock.guards;
SELECT fenced_lock.protect('wallets', 'wallet:{id}', 'fence', '{balance}', on_insert => true, on_truncate => false);
SELECT * FROM fenced_lock.guards;
SELECT fenced_lock.unprotect('wallets');
-- So is what is made by hand in the same way.
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
SELECT * FROM fenced_lock.guards;
DROP TRIGGER zz_guard ON wallets;

-- Each table below has one fault. What is in force with it, and why not?
CREATE FUNCTION shown(statement text) RETURNS TABLE (guard text, enabled text, on_insert boolean, on_truncate boolean, in_force boolean, problem text)
LANGUAGE plpgsql AS $$
BEGIN
  BEGIN
    EXECUTE statement;
    CREATE TEMP TABLE seen AS SELECT * FROM fenced_lock.guards;
    RAISE EXCEPTION USING MESSAGE = (SELECT jsonb_agg(seen ORDER BY seen.relation::text, seen.key_template) FROM seen);
  EXCEPTION WHEN raise_exception THEN
    RETURN QUERY SELECT concat_ws(' ', g.relation::text, g.kind, g.key_template, g.stamp, g.columns::text), g.enabled, g.on_insert, g.on_truncate, g.in_force, g.problem
      FROM jsonb_to_recordset(SQLERRM::jsonb) g(relation text, kind text, key_template text, stamp text, columns text[], enabled text,
                                                on_insert boolean, on_truncate boolean, in_force boolean, problem text);
  END;
END $$;
SELECT fenced_lock.protect('wallets', 'wallet:{id}', 'fence', on_insert => true);
\set VERBOSITY terse
\pset format unaligned
SELECT n, s.* FROM (VALUES
  -- modes
  (1, 'ALTER TABLE wallets DISABLE TRIGGER ALL'),
  (2, 'ALTER TABLE wallets DISABLE TRIGGER USER'),
  (3, 'ALTER TABLE wallets DISABLE TRIGGER "~fenced_lock_update"'),
  (4, 'ALTER TABLE wallets DISABLE TRIGGER "~fenced_lock_insert"'),
  (5, 'ALTER TABLE wallets DISABLE TRIGGER "~fenced_lock_truncate"'),
  (6, 'ALTER TABLE wallets ENABLE REPLICA TRIGGER "~fenced_lock_delete"'),
  (7, 'ALTER TABLE wallets ENABLE ALWAYS TRIGGER "~fenced_lock_delete"'),
  (8, 'ALTER TABLE wallets ENABLE ALWAYS TRIGGER "~fenced_lock_delete", ENABLE ALWAYS TRIGGER "~fenced_lock_update", ENABLE ALWAYS TRIGGER "~fenced_lock_insert"'),
  -- parts that are missing
  (10, 'DROP TRIGGER "~fenced_lock_update" ON wallets'),
  (11, 'DROP TRIGGER "~fenced_lock_delete" ON wallets'),
  (12, 'DROP TRIGGER "~fenced_lock_insert" ON wallets'),
  (13, 'DROP TRIGGER "~fenced_lock_truncate" ON wallets'),
  (14, 'DROP TRIGGER "~fenced_lock_insert" ON wallets; DROP TRIGGER "~fenced_lock_update" ON wallets; DROP TRIGGER "~fenced_lock_delete" ON wallets'),
  -- other triggers, before and after in the order of names
  (20, 'CREATE TRIGGER zzz BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW EXECUTE FUNCTION change()'),
  (21, 'CREATE TRIGGER "~~" BEFORE UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION change()'),
  (22, 'CREATE TRIGGER "über" BEFORE INSERT ON wallets FOR EACH ROW EXECUTE FUNCTION change()'),
  (23, 'CREATE TRIGGER "~~" AFTER UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION change()'),
  (24, 'CREATE TRIGGER "~~" BEFORE UPDATE ON wallets FOR EACH STATEMENT EXECUTE FUNCTION change()'),
  (25, 'CREATE TRIGGER "~~" BEFORE UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION change(); ALTER TABLE wallets DISABLE TRIGGER "~~"'),
  -- definitions that can no longer serve
  (30, 'ALTER TABLE wallets RENAME id TO number'),
  (31, 'ALTER TABLE wallets RENAME fence TO stamp'),
  (32, 'ALTER TABLE wallets ALTER fence TYPE int'),
  (33, 'ALTER TABLE wallets ALTER id TYPE numeric'),
  -- the lock table
  (40, 'ALTER TABLE fenced_lock.lock_row SET UNLOGGED'),
  (41, 'ALTER TABLE wallets RENAME TO "Odd ""Wallets"')) v(n, statement), shown(statement) s ORDER BY n;
SELECT fenced_lock.unprotect('wallets');
-- By hand: wrong, or in part.
SELECT n, s.* FROM (VALUES
  (1, 'AFTER INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', '''x:{id}'''),
  (2, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets', '''x:{id}'''),
  (3, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', ''),
  (4, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', '''x:{id}'', ''fence'', ''more'''),
  (5, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', '''x:{nothing}'''),
  (6, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', '''x:{'''),
  (7, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW', '''x:{id}'', ''balance'''),
  (8, 'BEFORE UPDATE OF balance OR DELETE ON wallets FOR EACH ROW', '''x:{id}'''),
  (9, 'BEFORE TRUNCATE ON wallets', '''x:{id}'''),
  (10, 'AFTER TRUNCATE ON wallets', '''x:{id}'''),
  (11, 'BEFORE TRUNCATE ON wallets FOR EACH STATEMENT WHEN (false)', '''x:{id}'''),
  (12, 'BEFORE DELETE ON wallets FOR EACH ROW WHEN (OLD.balance > 0)', '''x:{id}'''),
  (13, 'BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW WHEN (current_user <> ''admin'')', '''x:{id}''')) v(n, timing, arguments),
  shown(format('CREATE TRIGGER by_hand %s EXECUTE FUNCTION fenced_lock.guard(%s)', timing, arguments)) s ORDER BY n;
-- WHEN clauses for UPDATE: those of protect's form, whole or not, and others.
CREATE TRIGGER for_delete BEFORE DELETE ON wallets FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('x:{id}', 'fence');
SELECT n, s.* FROM (VALUES
  (1, 'NEW.balance IS DISTINCT FROM OLD.balance OR (NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence)'),
  (2, 'NEW.balance IS DISTINCT FROM OLD.balance OR NEW.fence IS DISTINCT FROM OLD.fence'),
  (3, 'NEW.balance IS DISTINCT FROM OLD.balance OR NEW.id IS DISTINCT FROM OLD.id'),
  (4, 'NEW.balance IS DISTINCT FROM OLD.balance AND (NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence)'),
  (5, 'NEW.balance <> OLD.balance OR NEW.id <> OLD.id OR NEW.fence <> OLD.fence'),
  (6, 'NEW.balance IS DISTINCT FROM OLD.id OR NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence'),
  (7, 'OLD.balance IS DISTINCT FROM OLD.balance OR NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence'),
  (8, 'NEW.balance / 10 IS DISTINCT FROM OLD.balance / 10 OR NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence'),
  (9, 'NEW.* IS DISTINCT FROM OLD.*'),
  (10, 'NOT (NEW.id IS DISTINCT FROM OLD.id OR NEW.fence IS DISTINCT FROM OLD.fence)')) v(n, clause),
  shown(format('CREATE TRIGGER for_update BEFORE UPDATE ON wallets FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fenced_lock.guard(''x:{id}'', ''fence'')', clause)) s ORDER BY n;
DROP TRIGGER for_delete ON wallets;
-- A collation that takes different keys for equal; a type that another "=" compares.
SELECT EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i') AS icu \gset
\if :icu
CREATE COLLATION ignore_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
\else
-- A PostgreSQL without ICU has no such collation.
CREATE COLLATION ignore_case FROM "C";
\endif
CREATE TABLE texts (name text COLLATE ignore_case, v varchar(9));
CREATE TRIGGER for_delete BEFORE DELETE ON texts FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('x:{name}');
SELECT n, s.in_force = (n = 2 OR NOT :'icu') AS told FROM (VALUES
  (1, 'NEW.name IS DISTINCT FROM OLD.name'),
  (2, 'NEW.name COLLATE "C" IS DISTINCT FROM OLD.name COLLATE "C" OR NEW.v IS DISTINCT FROM OLD.v')) v(n, clause),
  shown(format('CREATE TRIGGER for_update BEFORE UPDATE ON texts FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fenced_lock.guard(''x:{name}'')', clause)) s ORDER BY n;
CREATE FUNCTION never(varchar, varchar) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE OPERATOR = (leftarg = varchar, rightarg = varchar, function = never);
SELECT s.* FROM shown('CREATE TRIGGER for_update BEFORE UPDATE ON texts FOR EACH ROW WHEN (NEW.v IS DISTINCT FROM OLD.v) EXECUTE FUNCTION fenced_lock.guard(''x:{name}'')') s;
SELECT fenced_lock.protect('texts', 'x:{name}', columns => '{v}');
DROP TRIGGER for_delete ON texts;
SELECT pg_get_triggerdef(oid) LIKE '%v IS DISTINCT FROM%' AS by_the_other_operator FROM pg_trigger WHERE tgrelid = 'texts'::regclass AND tgname = '~fenced_lock_update';
SELECT columns, in_force FROM fenced_lock.guards WHERE relation = 'texts'::regclass;
DROP TABLE texts;
DROP OPERATOR = (varchar, varchar);
DROP FUNCTION never;
DROP COLLATION ignore_case;
-- Two guards of one table.
CREATE TRIGGER one BEFORE INSERT OR UPDATE OR DELETE ON wallets FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('x:{id}', 'fence');
CREATE TRIGGER two BEFORE UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('x:{id}');
SELECT * FROM fenced_lock.guards;
-- A trigger between them is late for one. TRUNCATE's needs no arguments.
CREATE TRIGGER other BEFORE UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION change();
CREATE TRIGGER truncation BEFORE TRUNCATE ON wallets FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard();
SELECT * FROM fenced_lock.guards ORDER BY stamp;
DROP TRIGGER one ON wallets;
DROP TRIGGER other ON wallets;
DROP TRIGGER two ON wallets;
SELECT * FROM fenced_lock.guards;
DROP TRIGGER truncation ON wallets;
-- The other kind of guard, for tokens from elsewhere, is one of its own.
BEGIN;
SELECT fenced_lock.protect('wallets', 'x:{id}', on_truncate => false);
CREATE TRIGGER watermark BEFORE INSERT OR UPDATE ON wallets FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard_watermark('x:{id}');
CREATE TRIGGER watermark_truncate BEFORE TRUNCATE ON wallets FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard_watermark('x:{id}');
SELECT * FROM fenced_lock.guards ORDER BY kind;
ALTER TABLE fenced_lock.watermark SET UNLOGGED;
SELECT kind, in_force, problem FROM fenced_lock.guards ORDER BY kind;
ROLLBACK;
\pset format aligned

-- Partitions: each is shown, and the table's guard is as good as the worst.
CREATE TABLE ledger (id int, region text, amount int, fence int8) PARTITION BY LIST (region);
CREATE TABLE ledger_eu PARTITION OF ledger FOR VALUES IN ('eu') PARTITION BY RANGE (id);
CREATE TABLE ledger_eu_1 PARTITION OF ledger_eu FOR VALUES FROM (1) TO (1000);
CREATE TABLE ledger_us (fence int8, gone int, amount int, region text, id int);
ALTER TABLE ledger_us DROP COLUMN gone;
ALTER TABLE ledger ATTACH PARTITION ledger_us FOR VALUES IN ('us');
SELECT fenced_lock.protect('ledger', 'ledger:{id}', 'fence', '{amount}');
SELECT * FROM fenced_lock.guards ORDER BY relation;
ALTER TABLE ledger_eu_1 DISABLE TRIGGER "~fenced_lock_update";
SELECT relation, enabled, in_force, problem FROM fenced_lock.guards ORDER BY relation;
ALTER TABLE ledger_eu_1 ENABLE TRIGGER "~fenced_lock_update";
CREATE TRIGGER "~~" BEFORE DELETE ON ledger_us FOR EACH ROW EXECUTE FUNCTION change();
SELECT relation, in_force, problem FROM fenced_lock.guards ORDER BY relation;
DROP TRIGGER "~~" ON ledger_us;
-- One that comes later has the row triggers, and lets TRUNCATE pass.
CREATE TABLE ledger_cn PARTITION OF ledger FOR VALUES IN ('cn');
SELECT relation, on_truncate, in_force, problem FROM fenced_lock.guards ORDER BY relation;
-- One that goes keeps TRUNCATE's alone.
ALTER TABLE ledger DETACH PARTITION ledger_us;
SELECT relation, key_template, stamp, columns, enabled, on_insert, on_truncate, in_force, problem FROM fenced_lock.guards WHERE relation = 'ledger_us'::regclass;
SELECT fenced_lock.unprotect('ledger_us');
SELECT relation, in_force FROM fenced_lock.guards ORDER BY relation;
-- One whose writes others make elsewhere.
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE ledger_far PARTITION OF ledger FOR VALUES IN ('far') SERVER nowhere;
SELECT relation, on_truncate, in_force, problem FROM fenced_lock.guards ORDER BY relation;
DROP FOREIGN DATA WRAPPER nowhere CASCADE;

-- Inheritance: a child that comes later has no guard.
CREATE TABLE parent (id int, amount int);
CREATE TABLE child () INHERITS (parent);
SELECT fenced_lock.protect('parent', 'parent:{id}', on_insert => true);
SELECT relation, on_insert, in_force, problem FROM fenced_lock.guards WHERE relation::text IN ('parent', 'child') ORDER BY relation;
CREATE TABLE grandchild () INHERITS (child);
SELECT relation, on_insert, on_truncate, in_force, problem FROM fenced_lock.guards WHERE relation::text IN ('parent', 'child', 'grandchild') ORDER BY relation;
SELECT fenced_lock.protect('grandchild', 'parent:{id}');
SELECT relation, on_insert, on_truncate, in_force, problem FROM fenced_lock.guards WHERE relation::text IN ('parent', 'child', 'grandchild') ORDER BY relation;
-- One whose guard goes by another key does not serve its parent.
SELECT fenced_lock.unprotect('grandchild');
SELECT fenced_lock.protect('grandchild', 'other:{id}');
SELECT relation, key_template, on_truncate, in_force, problem FROM fenced_lock.guards WHERE relation::text IN ('parent', 'child', 'grandchild') ORDER BY relation;

-- For whoever was allowed, also of tables that are none of his.
CREATE ROLE fl_guards_reader;
SET ROLE fl_guards_reader;
SELECT count(*) FROM fenced_lock.guards;
RESET ROLE;
SELECT fenced_lock.allow('fl_guards_reader');
SET ROLE fl_guards_reader;
SET search_path = '';
BEGIN READ ONLY;
SELECT relation, in_force FROM fenced_lock.guards WHERE relation OPERATOR(pg_catalog.=) 'public.ledger'::pg_catalog.regclass;
COMMIT;
RESET search_path;
RESET ROLE;
SELECT fenced_lock.disallow('fl_guards_reader');
DROP ROLE fl_guards_reader;
-- What is no trigger has no definition.
SELECT * FROM fenced_lock.guard_definition('wallets', 0), fenced_lock.guard_definition(0, 0) a, fenced_lock.guard_definition(NULL, NULL) b;
DROP TABLE wallets, ledger, ledger_us, parent CASCADE;
DROP FUNCTION shown, change;
SELECT * FROM fenced_lock.guards;

-- A child whose guard looks at fewer columns; a statement trigger for UPDATE.
CREATE TABLE gv_parent (id bigint, balance int, memo text);
CREATE TABLE gv_child () INHERITS (gv_parent);
SELECT fenced_lock.protect('gv_parent', 'gv:{id}');
SELECT fenced_lock.unprotect('gv_child'), fenced_lock.protect('gv_child', 'gv:{id}', columns => '{memo}');
SELECT relation, columns, in_force, problem FROM fenced_lock.guards WHERE relation::text LIKE 'gv\_%' ORDER BY relation::text;
SELECT fenced_lock.unprotect('gv_parent');
CREATE TRIGGER g BEFORE UPDATE OR DELETE OR TRUNCATE ON gv_child FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('gv:{id}');
SELECT relation, in_force, problem FROM fenced_lock.guards WHERE relation::text LIKE 'gv\_%';
-- An operator that takes more for equal than the type does.
CREATE TABLE gv_box (id bigint, b box);
CREATE TRIGGER g BEFORE UPDATE ON gv_box FOR EACH ROW
  WHEN (NEW.id IS DISTINCT FROM OLD.id OR NEW.b IS DISTINCT FROM OLD.b) EXECUTE FUNCTION fenced_lock.guard('gv:{id}');
SELECT relation, columns, in_force, problem FROM fenced_lock.guards WHERE relation::text LIKE 'gv\_box';
-- A template can be no longer than a key.
SELECT fenced_lock.protect('gv_parent', repeat('x', 1025));
DROP TABLE gv_parent, gv_child, gv_box;
