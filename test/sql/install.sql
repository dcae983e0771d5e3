--
-- What CREATE EXTENSION makes, and how it is labelled.
--
\set SHOW_CONTEXT never
-- A schema of that name is not adopted.
CREATE SCHEMA fenced_lock;
CREATE EXTENSION fenced_lock;
DROP SCHEMA fenced_lock;
CREATE EXTENSION fenced_lock;

-- The schema is a member: it is dropped with the extension.
SELECT count(*) = 1 AS schema_is_member
  FROM pg_depend
 WHERE classid = 'pg_namespace'::regclass AND objid = 'fenced_lock'::regnamespace
   AND deptype = 'e';

-- Functions: volatile and unsafe for parallel plans, reads restricted; never
-- leakproof, strict or run with other rights than the caller's.
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       provolatile, proparallel, proleakproof, proisstrict, prosecdef, procost
  FROM pg_proc p WHERE pronamespace = 'fenced_lock'::regnamespace
 ORDER BY p.oid::regprocedure::text;
SELECT proname, pg_get_function_arguments(oid) AS arguments
  FROM pg_proc WHERE pronamespace = 'fenced_lock'::regnamespace ORDER BY 1;

-- The columns that are promised.
\d fenced_lock.lease
\d fenced_lock.lock_row
\d fenced_lock.watermark
\d fenced_lock.locks
\d fenced_lock.guards
\d fenced_lock.token_seq

-- Everything that a user can see has a comment.
SELECT c.oid::regclass AS without_comment
  FROM pg_class c
 WHERE relnamespace = 'fenced_lock'::regnamespace AND relkind IN ('r', 'v', 'S')
   AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL
SELECT c.oid::regclass
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE relnamespace = 'fenced_lock'::regnamespace AND relkind IN ('v', 'c')
   AND col_description(c.oid, a.attnum) IS NULL;
SELECT p.oid::regprocedure AS without_comment
  FROM pg_proc p
 WHERE pronamespace = 'fenced_lock'::regnamespace
   AND obj_description(p.oid, 'pg_proc') IS NULL;

-- The settings, once the library is loaded.
LOAD 'fenced_lock';
SELECT name, setting, unit, context, min_val, max_val
  FROM pg_settings WHERE name LIKE 'fenced\_lock.%' ORDER BY name;
SET fenced_lock.no_such_setting = 1;

