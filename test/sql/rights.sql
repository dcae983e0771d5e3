--
-- Nobody can use the locks before a grant, and one grant is enough.
--
\set SHOW_CONTEXT never
CREATE ROLE fl_app LOGIN;
CREATE ROLE fl_other LOGIN;
CREATE ROLE "fl odd ""name""" LOGIN;
CREATE ROLE fl_reader LOGIN IN ROLE pg_read_all_data;
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'allowed';
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, regexp_replace(SQLERRM, '\d{10,}', 'N', 'g'));
END $$;
CREATE TABLE right_wallets (id int PRIMARY KEY, balance int);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON right_wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('right:{id}');
CREATE TABLE right_marked (id int PRIMARY KEY);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON right_marked
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard_watermark('right:{id}');
GRANT ALL ON right_wallets, right_marked TO fl_app, fl_other;
GRANT CREATE ON SCHEMA public TO fl_app;
CREATE TABLE using_it (statement text);
INSERT INTO using_it VALUES
  ('SELECT * FROM fenced_lock.try_acquire(''right:x'')'),
  ('SELECT fenced_lock.renew(''right:x'', gen_random_uuid())'),
  ('SELECT fenced_lock.release(''right:x'', gen_random_uuid())'),
  ('SELECT fenced_lock.pin(''right:none'', 1)'),
  ('SELECT fenced_lock.pin_all(''{right:none}'', 1)'),
  ('SELECT fenced_lock.admit(''right:admitted'', 1)'),
  ('SELECT fenced_lock.lock_id(''right:x'')'),
  ('SELECT * FROM fenced_lock.locks'),
  ('SELECT * FROM fenced_lock.guards');
CREATE TABLE breaking_it (statement text);
INSERT INTO breaking_it VALUES
  ('SELECT * FROM fenced_lock.lock_row'),
  ('SELECT owner_digest FROM fenced_lock.lock_row'),
  ('INSERT INTO fenced_lock.lock_row (key) VALUES (''x'')'),
  ('UPDATE fenced_lock.lock_row SET expires_at = ''infinity'''),
  ('DELETE FROM fenced_lock.lock_row'),
  ('TRUNCATE fenced_lock.lock_row'),
  ('LOCK fenced_lock.lock_row'),
  ('SELECT * FROM fenced_lock.lock_row FOR UPDATE'),
  ('INSERT INTO fenced_lock.watermark VALUES (''x'', 1, now())'),
  ('UPDATE fenced_lock.watermark SET fencing_token = 1'),
  ('DELETE FROM fenced_lock.watermark'),
  ('TRUNCATE fenced_lock.watermark'),
  ('LOCK fenced_lock.watermark'),
  ('SELECT * FROM fenced_lock.watermark FOR UPDATE'),
  ('SELECT * FROM fenced_lock.hash_seed'),
  ('UPDATE fenced_lock.hash_seed SET seed = gen_random_uuid()'),
  ('SELECT nextval(''fenced_lock.token_seq'')'),
  ('SELECT setval(''fenced_lock.token_seq'', 1)'),
  ('SELECT setval(''fenced_lock.incarnation_seq'', 1)'),
  ('SELECT * FROM fenced_lock.incarnation_seq'),
  ('ALTER SEQUENCE fenced_lock.token_seq RESTART'),
  ('CREATE TRIGGER t BEFORE UPDATE ON fenced_lock.lock_row FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard(''x'')'),
  ('CREATE TABLE referencing_it (key text REFERENCES fenced_lock.lock_row (key))'),
  ('CREATE INDEX ON fenced_lock.lock_row (expires_at)'),
  ('ALTER TABLE fenced_lock.lock_row SET UNLOGGED'),
  ('CREATE FUNCTION fenced_lock.f() RETURNS int LANGUAGE sql AS ''SELECT 1'''),
  ('DROP FUNCTION fenced_lock.pin(text, bigint)'),
  ('ALTER EXTENSION fenced_lock ADD TABLE right_wallets'),
  ('SELECT fenced_lock.protect(''right_wallets'', ''right:{id}'')'),
  ('SELECT fenced_lock.unprotect(''right_wallets'')'),
  ('SELECT fenced_lock.protect(''fenced_lock.lock_row'', ''right:{key}'')'),
  ('SELECT fenced_lock.allow(''fl_app'')'),
  ('SELECT fenced_lock.allow(''fl_other'')'),
  ('SELECT fenced_lock.disallow(''fl_other'')'),
  ('SELECT fenced_lock.force_release(''right:x'', 1)'),
  ('SELECT fenced_lock.purge()'),
  ('SELECT fenced_lock.raise_fence(1)'),
  ('SELECT setval(''fenced_lock.floor_seq'', 1)'),
  ('SET fenced_lock.max_ttl = ''1 d'''),
  ('SELECT lo_import(''/etc/passwd'')');
GRANT SELECT ON using_it, breaking_it TO PUBLIC;

-- Before the grant.
SET ROLE fl_app;
SELECT statement, outcome(statement) FROM using_it;
-- The trigger function is for everybody: it can only refuse.
SELECT outcome('UPDATE right_wallets SET balance = 0');
SELECT outcome('INSERT INTO right_wallets VALUES (1, 0)');
SELECT outcome('INSERT INTO right_marked VALUES (1)');
RESET ROLE;
-- allow is the one grant; it can be repeated.
SELECT fenced_lock.allow('fl_app');
SELECT fenced_lock.allow('fl_app');
SELECT fenced_lock.allow('"fl odd ""name"""');
SET ROLE fl_app;
SELECT statement, outcome(statement) FROM using_it;
SELECT fencing_token AS t, owner_token AS o FROM fenced_lock.try_acquire('right:1') \gset
INSERT INTO right_wallets SELECT 1, 100 FROM fenced_lock.pin('right:1', :t);
UPDATE right_wallets SET balance = balance - 10 FROM fenced_lock.pin('right:1', :t) WHERE id = 1 RETURNING balance;
SELECT fenced_lock.renew('right:1', :'o') IS NOT NULL AS renewed;
SELECT key, role FROM fenced_lock.locks WHERE key = 'right:1';
SELECT fenced_lock.release('right:1', :'o');
-- What it must not do.
SELECT statement, outcome(statement) FROM breaking_it;
-- Settings of its own.
SET fenced_lock.durable_grants = off;
RESET fenced_lock.durable_grants;
SET fenced_lock.pin_idle_timeout = on;
RESET fenced_lock.pin_idle_timeout;
RESET ROLE;
SET ROLE "fl odd ""name""";
SELECT acquired FROM fenced_lock.try_acquire('right:2');
SELECT role FROM fenced_lock.locks WHERE key = 'right:2';
RESET ROLE;
-- A grant to one is not a grant to another.
SET ROLE fl_other;
SELECT outcome('SELECT * FROM fenced_lock.try_acquire(''right:x'')');
SELECT outcome('SELECT * FROM fenced_lock.locks');
RESET ROLE;
-- Who reads all data sees digests, and that is all there is to see.
SET ROLE fl_reader;
SELECT count(*) > 0 AS rows, bool_and(octet_length(owner_digest) = 32) AS digests FROM fenced_lock.lock_row WHERE owner_digest IS NOT NULL;
SELECT outcome('SELECT * FROM fenced_lock.try_acquire(''right:x'')');
RESET ROLE;
-- disallow takes back all of it.
SELECT fenced_lock.disallow('fl_app');
SELECT fenced_lock.disallow('fl_app');
SET ROLE fl_app;
SELECT statement, outcome(statement) FROM using_it;
RESET ROLE;
-- What a plain owner's pg_dump reads, and no more, is PUBLIC's.
SELECT c.oid::regclass AS relation, a.privilege_type
  FROM pg_class c, aclexplode(c.relacl) a
 WHERE relnamespace = 'fenced_lock'::regnamespace AND a.grantee = 0
ORDER BY 1, 2;
SELECT p.oid::regprocedure AS function
  FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
 WHERE pronamespace = 'fenced_lock'::regnamespace AND a.grantee = 0 ORDER BY 1;
SELECT a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) a WHERE nspname = 'fenced_lock' AND a.grantee = 0;
SELECT extconfig::regclass[] AS dumped FROM pg_extension WHERE extname = 'fenced_lock';

SELECT fenced_lock.disallow('"fl odd ""name"""');
-- Default privileges are no grant.
BEGIN;
DROP EXTENSION fenced_lock CASCADE;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO fl_app;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO fl_app;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO fl_app;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO fl_app;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
CREATE EXTENSION fenced_lock;
SELECT c.relname::text AS object, a.grantee::regrole, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
 WHERE relnamespace = 'fenced_lock'::regnamespace AND a.grantee <> c.relowner
UNION ALL
SELECT p.proname::text, a.grantee::regrole, a.privilege_type FROM pg_proc p, aclexplode(p.proacl) a
 WHERE pronamespace = 'fenced_lock'::regnamespace AND a.grantee <> p.proowner
UNION ALL
SELECT n.nspname::text, a.grantee::regrole, a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) a
 WHERE nspname = 'fenced_lock' AND a.grantee <> n.nspowner;
ROLLBACK;
DROP TABLE right_wallets, right_marked, using_it, breaking_it;
REVOKE CREATE ON SCHEMA public FROM fl_app;
DROP FUNCTION outcome;
DROP ROLE fl_app, fl_other, "fl odd ""name""", fl_reader;
