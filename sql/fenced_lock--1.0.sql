\echo Use "CREATE EXTENSION fenced_lock" to load this file. \quit

-- The schema is a member of the extension: it goes with it, and where a schema
-- of that name exists already CREATE EXTENSION fails instead of using it.
CREATE SCHEMA fenced_lock;
COMMENT ON SCHEMA fenced_lock IS
'Fenced advisory locks: keyed leases whose fencing tokens guarded tables check';

--
-- Storage
--

-- CACHE 1: with a cache, tokens of different sessions would run backwards.
CREATE SEQUENCE fenced_lock.token_seq AS bigint MINVALUE 0 START 0 CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE fenced_lock.token_seq IS
'The last fencing token that was issued in this database';

CREATE SEQUENCE fenced_lock.incarnation_seq AS bigint MINVALUE 0 START 0 CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE fenced_lock.incarnation_seq IS
'Identifies the start of the server that has last moved token_seq to the clock';

-- Never dumped: by it a token_seq that a dump sets back is noticed.
CREATE SEQUENCE fenced_lock.floor_seq AS bigint MINVALUE 0 START 0 CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE fenced_lock.floor_seq IS
'The highest value that token_seq has logged; no token from now on is below it';

CREATE TABLE fenced_lock.hash_seed (seed uuid NOT NULL);
INSERT INTO fenced_lock.hash_seed VALUES (pg_catalog.gen_random_uuid());
COMMENT ON TABLE fenced_lock.hash_seed IS
'The random number that goes into the hash of every key; read by nobody but the extension';

-- Written by C code alone, which does not look at constraints and defaults.
-- The role is an oid, not a regrole: a logical subscriber, to which that would be
-- sent by name, could not apply rows of a role that it does not have.
-- Room is left on every page for HOT updates (renew, release); a truncating
-- vacuum would take a lock that makes a try wait.
CREATE TABLE fenced_lock.lock_row (
	key text COLLATE "C" NOT NULL,
	fencing_token bigint NOT NULL,
	owner_digest bytea,
	ttl interval NOT NULL,
	granted_xid xid8 NOT NULL,
	acquired_at timestamptz NOT NULL,
	renewed_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	role oid NOT NULL,
	pid integer NOT NULL,
	application_name text,
	client_address inet,
	metadata jsonb
) WITH (
	fillfactor = 50,
	vacuum_truncate = off,
	toast.vacuum_truncate = off,
	autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_threshold = 1000
);
-- Read from its end, so that the newest version of a key's row comes first.
-- Not unique: the key lock is what makes a key unique, and a unique check
-- would walk every dead version of a renewed lease.
CREATE INDEX lock_row_newest_first ON fenced_lock.lock_row (key, fencing_token);
-- A publication FOR ALL TABLES includes this table.
ALTER TABLE fenced_lock.lock_row REPLICA IDENTITY FULL;

COMMENT ON TABLE fenced_lock.lock_row IS
'One row a key: its present or last lease. Written by the functions of the extension alone; each write holds the key''s advisory lock of class 17996';
COMMENT ON COLUMN fenced_lock.lock_row.key IS 'What is locked';
COMMENT ON COLUMN fenced_lock.lock_row.fencing_token IS 'Token of the last grant';
COMMENT ON COLUMN fenced_lock.lock_row.owner_digest IS 'SHA-256 of the owner token; NULL once the lease was released';
COMMENT ON COLUMN fenced_lock.lock_row.ttl IS 'Time to live of the lease, counted from acquired_at or renewed_at';
COMMENT ON COLUMN fenced_lock.lock_row.granted_xid IS 'Top-level transaction that was granted the lease';
COMMENT ON COLUMN fenced_lock.lock_row.acquired_at IS 'When the lease was granted';
COMMENT ON COLUMN fenced_lock.lock_row.renewed_at IS 'When the lease was last renewed; acquired_at if never';
COMMENT ON COLUMN fenced_lock.lock_row.expires_at IS 'When the lease ends, or when it was released';
COMMENT ON COLUMN fenced_lock.lock_row.role IS 'Role (current_user) of the grant';
COMMENT ON COLUMN fenced_lock.lock_row.pid IS 'Server process of the grant';
COMMENT ON COLUMN fenced_lock.lock_row.application_name IS 'application_name of the grant; NULL if empty';
COMMENT ON COLUMN fenced_lock.lock_row.client_address IS 'Client address of the grant; NULL for a unix socket';
COMMENT ON COLUMN fenced_lock.lock_row.metadata IS 'What the caller of the grant gave; NULL if nothing';

-- Written by C code alone, as lock_row. Every write changes the token, which
-- is indexed, so there are no HOT updates to leave room for on the pages; it
-- leaves a dead version behind, which VACUUM should not leave to pile up until
-- they are a fifth of all marks, of which none ever goes.
CREATE TABLE fenced_lock.watermark (
	key text COLLATE "C" NOT NULL,
	fencing_token bigint NOT NULL,
	admitted_at timestamptz NOT NULL
) WITH (
	vacuum_truncate = off,
	toast.vacuum_truncate = off,
	autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_threshold = 1000
);
-- Read from its end, so that the highest mark of a key comes first. Not
-- unique: see lock_row_newest_first; and a dump can be restored beside marks.
CREATE INDEX watermark_newest_first ON fenced_lock.watermark (key, fencing_token);
ALTER TABLE fenced_lock.watermark REPLICA IDENTITY FULL;

COMMENT ON TABLE fenced_lock.watermark IS
'One row a key: its mark, the highest token from elsewhere that admit() has admitted. Written by admit() alone, under the key''s advisory lock of class 17999; never removed';
COMMENT ON COLUMN fenced_lock.watermark.key IS 'What is locked elsewhere';
COMMENT ON COLUMN fenced_lock.watermark.fencing_token IS 'The highest token admitted; a lower one is stale';
COMMENT ON COLUMN fenced_lock.watermark.admitted_at IS 'When it was first admitted';

-- Fencing tokens go on rising after dump and restore, and what was stale stays
-- so. Leases are not dumped.
SELECT pg_catalog.pg_extension_config_dump('fenced_lock.token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('fenced_lock.watermark', '');

--
-- Leases
--

CREATE TYPE fenced_lock.lease AS (
	acquired boolean,
	fencing_token bigint,
	owner_token uuid,
	expires_at timestamptz,
	already_held boolean,
	retry_after_ms integer,
	blocked_key text
);
COMMENT ON TYPE fenced_lock.lease IS 'A granted lock with a time-to-live, or a refusal';
COMMENT ON COLUMN fenced_lock.lease.acquired IS 'Was the lock granted? Never NULL; if false, only retry_after_ms and blocked_key can be other than NULL';
COMMENT ON COLUMN fenced_lock.lease.fencing_token IS 'Rises with every grant in the database. Show it to pin(). Larger than 2^53 only after the year 2285, but pass it as a string in JavaScript';
COMMENT ON COLUMN fenced_lock.lease.owner_token IS 'The secret of this grant, for renew() and release()';
COMMENT ON COLUMN fenced_lock.lease.expires_at IS 'When the lease ends by the server''s clock, unless renewed';
COMMENT ON COLUMN fenced_lock.lease.already_held IS 'True if the owner token given had the lease already: same fencing token, life renewed';
COMMENT ON COLUMN fenced_lock.lease.retry_after_ms IS 'Of a refusal: milliseconds until the present lease ends; 100 if an open transaction is in the way';
COMMENT ON COLUMN fenced_lock.lease.blocked_key IS 'Of a refused set of keys: the key that was in the way; otherwise NULL';

CREATE FUNCTION fenced_lock.try_acquire(
	key text,
	ttl interval DEFAULT '30 s',
	owner_token uuid DEFAULT NULL,
	metadata jsonb DEFAULT NULL,
	wait interval DEFAULT '0')
RETURNS fenced_lock.lease
AS 'MODULE_PATHNAME', 'fenced_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.try_acquire(text, interval, uuid, jsonb, interval) IS
'Acquires the lock on a key, or tells that it was not to be had: always one row. ttl: 1 ms to fenced_lock.max_ttl, NULL for 30 s. owner_token: identity of one attempt, so that it can be repeated after a lost reply; NULL for a new one. metadata: shown in view locks. wait: how long to stand in line; 0 or NULL for one look without any wait. Errors: 22004 key NULL; 22023 bad key, ttl or wait; 25001 in a REPEATABLE READ or SERIALIZABLE transaction block; 25006 read-only. (Leases: Gray and Cheriton, 1989; fencing tokens: as ZooKeeper''s zxid, Chubby''s sequencers)';

CREATE FUNCTION fenced_lock.acquire(
	key text,
	ttl interval DEFAULT '30 s',
	owner_token uuid DEFAULT NULL,
	metadata jsonb DEFAULT NULL,
	wait interval DEFAULT '10 s')
RETURNS fenced_lock.lease
AS 'MODULE_PATHNAME', 'fenced_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.acquire(text, interval, uuid, jsonb, interval) IS
'Acquires the lock on a key, waiting in line for it, or fails with 55P03 when wait is over (NULL: 10 s). Otherwise as try_acquire(); a deadlock through open transactions is 40P01 here and a refusal there';

CREATE FUNCTION fenced_lock.renew(
	key text,
	owner_token uuid,
	ttl interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'fenced_lock_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.renew(text, uuid, interval) IS
'Lets a lease live for another ttl from now and returns its new end; NULL if the lease is lost (expired, released, taken over), never for "busy". ttl: NULL for the lease''s own; an explicit one becomes the lease''s own. The fencing token stays. Errors: 22004 key or owner token NULL; 22023 bad key or ttl; 25006 read-only';

CREATE FUNCTION fenced_lock.release(
	key text,
	owner_token uuid)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.release(text, uuid) IS
'Ends a lease, at commit. True if it was still this owner''s, also if it had expired and nobody had taken it over; otherwise false, with a WARNING of SQLSTATE LF002. Errors: 22004 key or owner token NULL; 22023 bad key; 25006 read-only';

CREATE FUNCTION fenced_lock.force_release(
	key text,
	fencing_token bigint,
	wait interval DEFAULT '0')
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.force_release(text, bigint, interval) IS
'For operators: ends the lease of somebody else, at commit, and its holder is fenced. fencing_token: the one seen in view locks, which must still be the current one. True if the lease was ended; false if the token is not current or the lease was released already; false with a WARNING (55P03) that names the processes in the way if the key is pinned, or being decided about, for longer than wait (0 or NULL: no wait). The server''s log tells who did it. Not part of allow(): GRANT EXECUTE to whom it may concern. Errors: 22004 key or fencing token NULL; 22023 bad key, token or wait; 25006 read-only';

CREATE FUNCTION fenced_lock.purge(
	idle interval DEFAULT '1 h',
	max_rows integer DEFAULT 1000)
RETURNS bigint
AS 'MODULE_PATHNAME', 'fenced_lock_purge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.purge(interval, integer) IS
'Removes the rows of keys that nobody has held for so long, and tells how many. idle: 0 or longer, NULL for 1 h. max_rows: 1 to 1,000 in one call, each with a lock to the end of the transaction; NULL for 1000. Waits for nobody: a key in use is left alone. Tokens go on rising all the same; the token of a purged key is then LF002 to pin(). Not part of allow(): GRANT EXECUTE to whom it may concern. Errors: 22023 bad idle or max_rows; 25006 read-only';

--
-- Fencing
--

CREATE FUNCTION fenced_lock.pin(
	key text,
	fencing_token bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_pin'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;
COMMENT ON FUNCTION fenced_lock.pin(text, bigint) IS
'True, or an error: proves that the caller holds the key, and keeps everybody else from being granted it until this transaction ends. Guards then accept this transaction''s writes for the key. Errors: LF001 stale fencing token, LF002 lock not held (both: lost, do the job anew); LF102 token never issued for this key (a bug); 22004 NULL; 22023 bad key or token; 25006 read-only; 40001 from REPEATABLE READ on if the lease is younger than the snapshot';

CREATE FUNCTION fenced_lock.pin_all(
	keys text[],
	fencing_token bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_pin_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;
COMMENT ON FUNCTION fenced_lock.pin_all(text[], bigint) IS
'pin() for a set of keys under one fencing token, in one order for all callers; 1 to 1,000 keys. Errors: as pin(); 22023 for an empty set, 22004 for a NULL in it, 54000 for more than 1,000 keys';

CREATE FUNCTION fenced_lock.raise_fence(at_least bigint)
RETURNS bigint
AS 'MODULE_PATHNAME', 'fenced_lock_raise_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.raise_fence(bigint) IS
'For operators: makes every token from now on greater than at_least, at once and for good (not undone by a rollback), and never lowers anything. Returns the number that the next token is above. For rows that bear a stamp from elsewhere, of a clone, say. Not part of allow(): GRANT EXECUTE to whom it may concern. Errors: 22004 NULL; 22023 below 1, or within 2^62 of the end of the numbers; 25006 read-only';

CREATE FUNCTION fenced_lock.guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'fenced_lock_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.guard() IS
'Trigger function: guard(''key template'' [, ''stamp column'']). BEFORE INSERT OR UPDATE OR DELETE FOR EACH ROW, it refuses rows whose key this transaction has not pinned (LF101) or that a later token has stamped (LF001); BEFORE TRUNCATE FOR EACH STATEMENT, it refuses (55000). In the template {column} stands for a column''s value; the stamp column (bigint) is set to the token that wrote the row';

CREATE FUNCTION fenced_lock.protect(
	relation regclass,
	key_template text,
	stamp name DEFAULT NULL,
	columns name[] DEFAULT NULL,
	on_insert boolean DEFAULT false,
	on_truncate boolean DEFAULT true,
	add_stamp boolean DEFAULT false)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_protect'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.protect(regclass, text, name, name[], boolean, boolean, boolean) IS
'Puts guard() on a table and all its partitions and children, with the caller''s rights. Always true. stamp: name of the stamp column. columns: only an UPDATE that changes one of these, or the key or the stamp, needs a pin; NULL for any UPDATE. on_insert, on_truncate: guard these too. add_stamp: add the stamp column where it is missing. Errors: 22004 relation or template NULL; 42710 protected already; 42809 not a table; 42703, 42804, 42P17, 42883, 22023 a template, stamp or column that can''t serve; 42501 not the owner; 25006 read-only';

CREATE FUNCTION fenced_lock.unprotect(relation regclass)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_unprotect'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.unprotect(regclass) IS
'Drops the triggers that protect() makes, from a table and all its partitions and children; the stamp column stays. False if there were none. Errors: 22004 relation NULL; 2BP01 a partition that is protected through its table; 42809 not a table; 42501 not the owner; 25006 read-only';

--
-- Fencing with tokens from elsewhere
--

CREATE FUNCTION fenced_lock.admit(
	key text,
	fencing_token bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_admit'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;
COMMENT ON FUNCTION fenced_lock.admit(text, bigint) IS
'True, or an error: for tokens that etcd, ZooKeeper, Consul or Redis has issued. Remembers the highest token of the key for ever, refuses lower ones, and keeps everybody else from admitting the key until this transaction ends. guard_watermark then accepts this transaction''s writes for the key. Errors: LF001 stale fencing token; 22004 NULL; 22023 bad key or token; 25006 read-only; from REPEATABLE READ on 25001 if the token is new and this is a transaction block, and 40001 if it was first admitted after the snapshot';

CREATE FUNCTION fenced_lock.guard_watermark()
RETURNS trigger
AS 'MODULE_PATHNAME', 'fenced_lock_guard_watermark'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.guard_watermark() IS
'Trigger function: guard_watermark(''key template'' [, ''stamp column'']). As guard(), but accepts rows whose key this transaction has admitted a token for, in place of pinned ones';

--
-- Seeing
--

CREATE FUNCTION fenced_lock.lock_id(key text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'fenced_lock_lock_id'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION fenced_lock.lock_id(text) IS
'Where pg_locks shows the advisory lock of a key: classid and objid, as one number, with objsubid 17996, or 17999 for an admitted key. Errors: 22004 key NULL; 22023 bad key';

CREATE FUNCTION fenced_lock.lease_end(expires_at timestamptz, renewed_at timestamptz)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'fenced_lock_lease_end'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION fenced_lock.lease_end(timestamptz, timestamptz) IS
'For view locks: when a lease ends that was not released, with fenced_lock.restart_grace. NULL for NULL';

CREATE VIEW fenced_lock.locks AS
SELECT r.key,
       r.fencing_token,
       'lease'::pg_catalog.text AS lifetime,
       r.role::pg_catalog.regrole AS role,
       r.pid,
       r.application_name,
       r.client_address,
       r.metadata,
       r.acquired_at,
       r.renewed_at,
       r.expires_at,
       p.pids AS pinned_by
  FROM (SELECT l.key, l.fencing_token, l.owner_digest, l.role, l.pid, l.application_name,
               l.client_address, l.metadata, l.acquired_at, l.renewed_at,
               CASE WHEN l.owner_digest IS NULL THEN l.expires_at
                    ELSE fenced_lock.lease_end(l.expires_at, l.renewed_at) END AS expires_at
          FROM fenced_lock.lock_row l) r
  LEFT JOIN (SELECT (l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32)
                    OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8 AS lock_id,
                    pg_catalog.array_agg(coalesce(l.pid, 0) ORDER BY l.pid) AS pids
               FROM pg_catalog.pg_locks l
              WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'
                AND l.objsubid OPERATOR(pg_catalog.=) 17996
                AND l.database OPERATOR(pg_catalog.=)
                    (SELECT d.oid FROM pg_catalog.pg_database d
                      WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
                AND l.granted
                AND l.mode OPERATOR(pg_catalog.=) ANY ('{RowShareLock,ShareUpdateExclusiveLock,ExclusiveLock}')
              GROUP BY l.classid, l.objid) p
         ON p.lock_id OPERATOR(pg_catalog.=) fenced_lock.lock_id(r.key)
 WHERE (r.owner_digest IS NOT NULL
        AND r.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())
    OR p.pids IS NOT NULL;
COMMENT ON VIEW fenced_lock.locks IS
'The locks that are held now, and those that have ended but whose key an open transaction still keeps';
COMMENT ON COLUMN fenced_lock.locks.key IS 'What is locked';
COMMENT ON COLUMN fenced_lock.locks.fencing_token IS 'Token of the grant';
COMMENT ON COLUMN fenced_lock.locks.lifetime IS 'What ends it: lease (its ttl)';
COMMENT ON COLUMN fenced_lock.locks.role IS 'Role (current_user) of the grant';
COMMENT ON COLUMN fenced_lock.locks.pid IS 'Server process of the grant; behind a pooler it may serve others by now';
COMMENT ON COLUMN fenced_lock.locks.application_name IS 'application_name of the grant; NULL if empty';
COMMENT ON COLUMN fenced_lock.locks.client_address IS 'Client address of the grant; NULL for a unix socket';
COMMENT ON COLUMN fenced_lock.locks.metadata IS 'What the caller of the grant gave; NULL if nothing';
COMMENT ON COLUMN fenced_lock.locks.acquired_at IS 'When it was granted';
COMMENT ON COLUMN fenced_lock.locks.renewed_at IS 'When it was last renewed; acquired_at if never';
COMMENT ON COLUMN fenced_lock.locks.expires_at IS 'When it ends; in the past for one that is only pinned';
COMMENT ON COLUMN fenced_lock.locks.pinned_by IS 'Server processes whose open transactions keep everybody else from the key: by a pin, or because they are acquiring, renewing or releasing it; 0 for a prepared transaction; NULL if none';

CREATE VIEW fenced_lock.waiters AS
SELECT w.pid,
       k.key,
       pg_catalog.row_number() OVER (PARTITION BY w.lock_id ORDER BY w.granted DESC, w.waitstart, w.pid) AS place,
       coalesce(w.waitstart, a.query_start) AS waiting_since,
       pg_catalog.pg_blocking_pids(w.pid) AS blocked_by,
       a.usename AS role,
       a.application_name,
       a.client_addr AS client_address
  FROM (SELECT l.pid, l.granted, l.waitstart,
               (l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32)
               OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8 AS lock_id
          FROM pg_catalog.pg_locks l
         WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'
           AND l.objsubid OPERATOR(pg_catalog.=) 17997
           AND l.database OPERATOR(pg_catalog.=)
               (SELECT d.oid FROM pg_catalog.pg_database d
                 WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) w
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) w.pid
  LEFT JOIN fenced_lock.lock_row k ON fenced_lock.lock_id(k.key) OPERATOR(pg_catalog.=) w.lock_id;
COMMENT ON VIEW fenced_lock.waiters IS
'Who stands in line for a key; the first of a line watches the key, the others wait for their turn';
COMMENT ON COLUMN fenced_lock.waiters.pid IS 'Server process that waits';
COMMENT ON COLUMN fenced_lock.waiters.key IS 'What it waits for; NULL for a key that was never granted, or whose first grant is not committed yet';
COMMENT ON COLUMN fenced_lock.waiters.place IS 'Place in the line, from 1';
COMMENT ON COLUMN fenced_lock.waiters.waiting_since IS 'Since when it stands in line; of the first, since when its statement runs';
COMMENT ON COLUMN fenced_lock.waiters.blocked_by IS 'Server processes that it waits for, as pg_blocking_pids() tells them; empty for a first that waits for the end of a lease';
COMMENT ON COLUMN fenced_lock.waiters.role IS 'Role (session_user) that waits; NULL if the caller may not see it';
COMMENT ON COLUMN fenced_lock.waiters.application_name IS 'application_name of the session that waits';
COMMENT ON COLUMN fenced_lock.waiters.client_address IS 'Client address of the session that waits; NULL for a unix socket, or if the caller may not see it';

CREATE FUNCTION fenced_lock.guard_definition(
	relation regclass,
	trigger oid,
	OUT key_template text,
	OUT stamp name,
	OUT columns name[],
	OUT problem text)
AS 'MODULE_PATHNAME', 'fenced_lock_guard_definition'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION fenced_lock.guard_definition(regclass, oid) IS
'For view guards: what the arguments of a guard say, the columns of its WHEN clause, and what is wrong with them; NULLs for what is no trigger of that table';

CREATE VIEW fenced_lock.guards AS
WITH RECURSIVE ours AS MATERIALIZED (
	-- Our triggers. tgtype: 1 row, 2 before, 4 insert, 8 delete, 16 update,
	-- 32 truncate.
	SELECT t.oid, t.tgrelid, t.tgname, t.tgtype, t.tgenabled, t.tgargs, k.kind,
	       t.tgenabled OPERATOR(pg_catalog.=) ANY ('{O,A}') AS active,
	       (t.tgtype OPERATOR(pg_catalog.&) 32) OPERATOR(pg_catalog.=) 0 AS for_rows,
	       d.key_template, d.stamp, d.columns,
	       CASE WHEN (t.tgtype OPERATOR(pg_catalog.&) 127) OPERATOR(pg_catalog.<>) 34
	             AND (t.tgtype OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.<>) 3
	            THEN 'it must be BEFORE … FOR EACH ROW'
	            WHEN t.tgattr::pg_catalog.text OPERATOR(pg_catalog.<>) ''
	            THEN 'it is for UPDATE OF some columns, whoever else changes them'
	            ELSE d.problem
	       END AS problem
	  FROM pg_catalog.pg_trigger t
	  JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
	  JOIN (VALUES ('guard'::pg_catalog.name, 'guard'::pg_catalog.text),
	               ('guard_watermark', 'watermark')) k(function, kind)
	    ON k.function OPERATOR(pg_catalog.=) p.proname
	 CROSS JOIN LATERAL fenced_lock.guard_definition(t.tgrelid, t.oid) d
	 WHERE p.pronamespace OPERATOR(pg_catalog.=) 'fenced_lock'::pg_catalog.regnamespace
), guard AS MATERIALIZED (
	-- One guard on one table: the triggers with the same arguments.
	SELECT o.tgrelid, o.kind, o.tgargs, o.key_template, o.stamp,
	       pg_catalog.min(o.columns) AS columns,
	       CASE WHEN NOT pg_catalog.bool_or(o.for_rows) THEN NULL
	            WHEN pg_catalog.count(DISTINCT o.tgenabled) FILTER (WHERE o.for_rows) OPERATOR(pg_catalog.>) 1 THEN 'mixed'
	            WHEN pg_catalog.bool_and(o.tgenabled OPERATOR(pg_catalog.=) 'O' OR NOT o.for_rows) THEN 'origin'
	            WHEN pg_catalog.bool_and(o.tgenabled OPERATOR(pg_catalog.=) 'A' OR NOT o.for_rows) THEN 'always'
	            WHEN pg_catalog.bool_and(o.tgenabled OPERATOR(pg_catalog.=) 'R' OR NOT o.for_rows) THEN 'replica'
	            ELSE 'disabled'
	       END AS enabled,
	       pg_catalog.bool_or(o.for_rows) AS for_rows,
	       pg_catalog.bool_or((o.tgtype OPERATOR(pg_catalog.&) 4) OPERATOR(pg_catalog.<>) 0
	                          AND o.active AND o.problem IS NULL) AS on_insert,
	       pg_catalog.bool_or((o.tgtype OPERATOR(pg_catalog.&) 32) OPERATOR(pg_catalog.<>) 0
	                          AND o.active AND o.problem IS NULL) AS on_truncate,
	       pg_catalog.bit_or(o.tgtype) AS events,
	       pg_catalog.string_agg(
	           pg_catalog.format('trigger %I on table %s: %s', o.tgname, o.tgrelid::pg_catalog.regclass,
	               CASE WHEN o.problem IS NOT NULL THEN o.problem
	                    WHEN o.tgenabled OPERATOR(pg_catalog.=) 'D' THEN 'it is disabled'
	                    ELSE 'it is enabled for replicas only' END),
	           '; ' ORDER BY o.tgname)
	           FILTER (WHERE o.problem IS NOT NULL
	                      OR (NOT o.active AND (o.tgtype OPERATOR(pg_catalog.&) 24) OPERATOR(pg_catalog.<>) 0)) AS problem
	  FROM ours o
	 GROUP BY o.tgrelid, o.kind, o.tgargs, o.key_template, o.stamp
), truncate AS (
	-- TRUNCATE is refused whatever the arguments say.
	SELECT g.tgrelid, g.kind, pg_catalog.bool_or(g.on_truncate) AS refused, pg_catalog.bool_or(g.for_rows) AS for_rows
	  FROM guard g
	 GROUP BY g.tgrelid, g.kind
), late AS (
	-- What changes a row behind the guard.
	SELECT o.tgrelid, o.kind, o.tgargs,
	       pg_catalog.string_agg(DISTINCT
	           pg_catalog.format('trigger %I on table %s fires after the guard', l.tgname, l.tgrelid::pg_catalog.regclass),
	           '; ') AS problem
	  FROM ours o
	  JOIN pg_catalog.pg_trigger l
	    ON l.tgrelid OPERATOR(pg_catalog.=) o.tgrelid
	   AND l.tgname OPERATOR(pg_catalog.>) o.tgname
	   AND (l.tgtype OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.=) 3
	   AND (l.tgtype OPERATOR(pg_catalog.&) o.tgtype OPERATOR(pg_catalog.&) 28) OPERATOR(pg_catalog.<>) 0
	   AND l.tgenabled OPERATOR(pg_catalog.=) ANY ('{O,A}')
	 WHERE NOT EXISTS (SELECT FROM ours x WHERE x.oid OPERATOR(pg_catalog.=) l.oid)
	 GROUP BY o.tgrelid, o.kind, o.tgargs
), tree AS (
	-- A guarded table with all its partitions and children.
	SELECT DISTINCT g.tgrelid AS root, g.tgrelid AS member
	  FROM guard g
	UNION
	SELECT t.root, i.inhrelid
	  FROM tree t
	  JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) t.member
), whole AS (
	-- One guard on a table and on all that belongs to it.
	SELECT g.tgrelid, g.kind, g.key_template, g.stamp, g.columns, g.enabled,
	       pg_catalog.bool_and(coalesce(m.on_insert, false)) AS on_insert,
	       pg_catalog.bool_and(coalesce(t.refused, false)) AS on_truncate,
	       pg_catalog.string_agg(w.problem, '; ' ORDER BY w.problem) FILTER (WHERE w.problem OPERATOR(pg_catalog.<>) '') AS problem
	  FROM guard g
	  -- TRUNCATE's trigger makes a guard only where there is no other.
	  JOIN truncate o
	    ON o.tgrelid OPERATOR(pg_catalog.=) g.tgrelid
	   AND o.kind OPERATOR(pg_catalog.=) g.kind
	   AND o.for_rows OPERATOR(pg_catalog.=) g.for_rows
	  JOIN tree r ON r.root OPERATOR(pg_catalog.=) g.tgrelid
	  JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.member
	  LEFT JOIN guard m
	    ON m.tgrelid OPERATOR(pg_catalog.=) r.member
	   AND m.kind OPERATOR(pg_catalog.=) g.kind
	   AND m.tgargs OPERATOR(pg_catalog.=) g.tgargs
	  LEFT JOIN truncate t
	    ON t.tgrelid OPERATOR(pg_catalog.=) r.member
	   AND t.kind OPERATOR(pg_catalog.=) g.kind
	  LEFT JOIN late l
	    ON l.tgrelid OPERATOR(pg_catalog.=) r.member
	   AND l.kind OPERATOR(pg_catalog.=) g.kind
	   AND l.tgargs OPERATOR(pg_catalog.=) g.tgargs
	 CROSS JOIN LATERAL (
	       SELECT pg_catalog.concat_ws('; ',
	           CASE WHEN (m.events OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0 THEN NULL
	                ELSE pg_catalog.format('UPDATE of table %s is not guarded', r.member::pg_catalog.regclass) END,
	           CASE WHEN (m.events OPERATOR(pg_catalog.&) 8) OPERATOR(pg_catalog.<>) 0 THEN NULL
	                ELSE pg_catalog.format('DELETE of table %s is not guarded', r.member::pg_catalog.regclass) END,
	           CASE WHEN m.columns IS NOT NULL AND NOT coalesce(m.columns OPERATOR(pg_catalog.@>) g.columns, false)
	                THEN pg_catalog.format('UPDATE of table %s is guarded for fewer columns', r.member::pg_catalog.regclass) END,
	           CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'f'
	                THEN pg_catalog.format('%s is a foreign table, which others may write at its server', r.member::pg_catalog.regclass) END,
	           m.problem,
	           l.problem) AS problem) w
	 GROUP BY g.tgrelid, g.kind, g.tgargs, g.key_template, g.stamp, g.columns, g.enabled
)
SELECT w.tgrelid::pg_catalog.regclass AS relation,
       w.kind,
       w.key_template,
       w.stamp,
       w.columns,
       w.enabled,
       w.on_insert,
       w.on_truncate,
       coalesce(u.problem, w.problem) IS NULL AS in_force,
       coalesce(u.problem OPERATOR(pg_catalog.||) '; ' OPERATOR(pg_catalog.||) w.problem, u.problem, w.problem) AS problem
  FROM whole w
  LEFT JOIN (SELECT CASE WHEN c.relname OPERATOR(pg_catalog.=) 'lock_row' THEN 'guard' ELSE 'watermark' END AS kind,
                    pg_catalog.format('table fenced_lock.%I is not logged, and is emptied by a crash', c.relname) AS problem
               FROM pg_catalog.pg_class c
              WHERE c.relnamespace OPERATOR(pg_catalog.=) 'fenced_lock'::pg_catalog.regnamespace
                AND c.relname OPERATOR(pg_catalog.=) ANY ('{lock_row,watermark}')
                AND c.relpersistence OPERATOR(pg_catalog.<>) 'p') u
    ON u.kind OPERATOR(pg_catalog.=) w.kind;
COMMENT ON VIEW fenced_lock.guards IS
'Every table with a guard, partitions too, and whether the guard is in force';
COMMENT ON COLUMN fenced_lock.guards.relation IS 'The guarded table';
COMMENT ON COLUMN fenced_lock.guards.kind IS 'Whose tokens it takes: guard (this database''s) or watermark (other systems'')';
COMMENT ON COLUMN fenced_lock.guards.key_template IS 'How the key is made of a row';
COMMENT ON COLUMN fenced_lock.guards.stamp IS 'Stamp column; NULL if none';
COMMENT ON COLUMN fenced_lock.guards.columns IS 'An UPDATE that changes none of these goes free; NULL if every UPDATE is checked';
COMMENT ON COLUMN fenced_lock.guards.enabled IS 'Mode of its row triggers: origin (the usual), always, replica, disabled, or mixed; NULL if it has none';
COMMENT ON COLUMN fenced_lock.guards.on_insert IS 'Is INSERT guarded, on the table and all its partitions and children?';
COMMENT ON COLUMN fenced_lock.guards.on_truncate IS 'Is TRUNCATE refused, on the table and all its partitions and children?';
COMMENT ON COLUMN fenced_lock.guards.in_force IS 'Are UPDATE and DELETE guarded for all ordinary sessions, on the table and all its partitions and children?';
COMMENT ON COLUMN fenced_lock.guards.problem IS 'Why it is not in force; NULL if it is';

--
-- Rights
--

CREATE FUNCTION fenced_lock.allow(role regrole)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_allow'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.allow(regrole) IS
'Lets a role use the locks: EXECUTE on all functions but allow(), disallow(), force_release(), purge() and raise_fence(), SELECT on the views. Always true. Errors: 22004 role NULL; 42501 unless the caller owns the extension; 25006 read-only';

CREATE FUNCTION fenced_lock.disallow(role regrole)
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_disallow'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.disallow(regrole) IS
'Takes back what allow() gave. Always true. Errors: as allow()';

CREATE FUNCTION fenced_lock.take_back_rights()
RETURNS boolean
AS 'MODULE_PATHNAME', 'fenced_lock_take_back_rights'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION fenced_lock.take_back_rights() IS
'For the extension''s scripts: revokes everybody''s rights on its objects, default privileges and allow() included. Always true. Errors: 42501 unless the caller may revoke; 25006 read-only';

-- Nobody has any right to what was made here, also where default privileges
-- say otherwise, but for this:
SELECT fenced_lock.take_back_rights();
GRANT USAGE ON SCHEMA fenced_lock TO PUBLIC;
-- A plain owner's pg_dump reads what is marked.
GRANT SELECT ON SEQUENCE fenced_lock.token_seq TO PUBLIC;
GRANT SELECT ON TABLE fenced_lock.watermark TO PUBLIC;
-- They can only refuse, and a dump restores triggers before grants.
GRANT EXECUTE ON FUNCTION fenced_lock.guard() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_lock.guard_watermark() TO PUBLIC;
