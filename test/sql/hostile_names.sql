--
-- Somebody else's objects of the names that we use change nothing.
--
\set SHOW_CONTEXT never
CREATE ROLE fl_hostile LOGIN;
CREATE SCHEMA hostile AUTHORIZATION fl_hostile;
SELECT fenced_lock.allow('fl_hostile');
SET ROLE fl_hostile;
CREATE FUNCTION hostile.hijack() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION hostile.texteq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT hostile.hijack()';
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN PERFORM hostile.hijack(); RETURN now(); END$$;
CREATE FUNCTION hostile.nextval(text) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN PERFORM hostile.hijack(); RETURN 1; END$$;
CREATE FUNCTION hostile.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$BEGIN PERFORM hostile.hijack(); RETURN ''; END$$;
CREATE FUNCTION hostile.string_agg(text, text) RETURNS text LANGUAGE plpgsql AS $$BEGIN PERFORM hostile.hijack(); RETURN ''; END$$;
CREATE OPERATOR hostile.= (leftarg = text, rightarg = text, function = hostile.texteq);
CREATE TABLE hostile.lock_row (key text, fencing_token bigint);
CREATE TABLE hostile.hash_seed (seed uuid);
CREATE SEQUENCE hostile.token_seq;
CREATE TABLE hostile.pg_proc (proname name);
CREATE TYPE hostile.uuid AS (a int);
CREATE FUNCTION hostile.varchareq(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT hostile.hijack()';
CREATE OPERATOR hostile.= (leftarg = varchar, rightarg = varchar, function = hostile.varchareq);
CREATE FUNCTION hostile.guard() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM hostile.hijack(); RETURN NEW; END$$;
CREATE TABLE hostile.wallets (id text, note varchar, other int);
INSERT INTO hostile.wallets VALUES ('1');
CREATE TEMP TABLE wallets (id text);
CREATE TEMP TABLE lock_row (key text, fencing_token bigint);
CREATE TEMP TABLE pg_proc (oid oid, proname name, pronamespace oid);
CREATE TEMP TABLE pg_locks (pid int);
CREATE TYPE pg_temp.uuid AS (a int);
CREATE TYPE pg_temp.interval AS (a int);
SET search_path = pg_temp, hostile, public, pg_catalog;
SELECT fencing_token AS t, owner_token AS o FROM fenced_lock.try_acquire('hostile:1') \gset
SELECT fenced_lock.pin('hostile:1', :t);
SELECT fenced_lock.renew('hostile:1', :'o') IS NOT NULL AS renewed;
SELECT key, pinned_by FROM fenced_lock.locks WHERE key OPERATOR(pg_catalog.=) 'hostile:1';
SELECT fenced_lock.release('hostile:1', :'o');
SELECT fenced_lock.protect('hostile.wallets', 'hostile:{id}', columns => '{note}');
UPDATE hostile.wallets SET other = 1;
UPDATE hostile.wallets SET note = 'x';
SELECT relation::text, in_force FROM fenced_lock.guards;
SELECT fenced_lock.unprotect('hostile.wallets');
RESET ROLE;
-- Also for a superuser who has such a path, or none.
SELECT fenced_lock.disallow('fl_hostile');
SELECT fenced_lock.allow('fl_hostile');
SET search_path = '';
SELECT fenced_lock.disallow('fl_hostile');
SELECT fenced_lock.allow('fl_hostile');
SELECT acquired FROM fenced_lock.try_acquire('hostile:2');
SELECT fenced_lock.protect('hostile.wallets', 'hostile:{id}', columns => '{note}');
SELECT relation, in_force FROM fenced_lock.guards;
SELECT fenced_lock.unprotect('hostile.wallets');
SET search_path = no_such_schema;
SELECT acquired FROM fenced_lock.try_acquire('hostile:3');
RESET search_path;
SELECT count(*) AS untouched FROM hostile.lock_row;
DISCARD TEMP;
SELECT fenced_lock.disallow('fl_hostile');
SET client_min_messages = warning;
DROP OWNED BY fl_hostile CASCADE;
RESET client_min_messages;
DROP ROLE fl_hostile;
