--
-- What operators do: force_release() and purge().
--
\set SHOW_CONTEXT never

-- The token that was seen must still be the current one.
SELECT fencing_token AS t1, owner_token AS o1 FROM fenced_lock.try_acquire('repair:1') \gset
SELECT fenced_lock.force_release('repair:1', :t1 - 1);
SELECT fenced_lock.force_release('repair:1', :t1 + 1);
SELECT fenced_lock.force_release('repair:none', :t1);
SELECT fenced_lock.force_release('repair:1', :t1);
-- Once is enough, and the victim is told by all it does.
SELECT fenced_lock.force_release('repair:1', :t1);
\set VERBOSITY sqlstate
SELECT fenced_lock.pin('repair:1', :t1);
SELECT fenced_lock.renew('repair:1', :'o1');
SELECT fenced_lock.release('repair:1', :'o1');
\set VERBOSITY default
SELECT acquired, fencing_token > :t1 AS risen FROM fenced_lock.try_acquire('repair:1');

-- One that has lapsed and that nobody has taken over can be ended as well.
SELECT fencing_token AS t2 FROM fenced_lock.try_acquire('repair:2', '1 ms') \gset
SELECT pg_sleep(0.01);
SELECT fenced_lock.force_release('repair:2', :t2);

-- Undone by a rollback; a pin of one's own goes with it.
SELECT fencing_token AS t3 FROM fenced_lock.try_acquire('repair:3') \gset
BEGIN;
SELECT fenced_lock.pin('repair:3', :t3);
SELECT fenced_lock.force_release('repair:3', :t3);
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT fenced_lock.pin('repair:3', :t3);
\set VERBOSITY default
ROLLBACK TO s;
ROLLBACK;
SELECT fenced_lock.pin('repair:3', :t3);

-- Arguments.
SELECT fenced_lock.force_release(NULL, 1);
SELECT fenced_lock.force_release('repair:3', NULL);
SELECT fenced_lock.force_release('', 1);
SELECT fenced_lock.force_release('repair:3', 0);
SELECT fenced_lock.force_release('repair:3', :t3, '-1 s');
SELECT fenced_lock.force_release('repair:3', :t3, '1 month');
SELECT fenced_lock.force_release('repair:3', :t3, NULL);
BEGIN READ ONLY;
SELECT fenced_lock.force_release('repair:3', :t3);
ROLLBACK;

-- purge() removes what has been free for so long: released, or lapsed.
DELETE FROM fenced_lock.lock_row WHERE key NOT LIKE 'repair:%';
SELECT key, owner_digest IS NULL AS released FROM fenced_lock.lock_row ORDER BY key;
SELECT fenced_lock.purge();
SELECT fenced_lock.purge('0');
SELECT key, owner_digest IS NULL AS released FROM fenced_lock.lock_row ORDER BY key;
-- Tokens go on rising, and the purged key's is known to have been issued.
\set VERBOSITY sqlstate
SELECT fenced_lock.pin('repair:3', :t3);
\set VERBOSITY default
SELECT acquired, fencing_token > :t3 AS risen FROM fenced_lock.try_acquire('repair:3', '10 ms');
SELECT count(acquired) AS granted FROM generate_series(1, 25) i,
       fenced_lock.try_acquire('repair:many:' || i, '1 ms');
SELECT pg_sleep(0.02);
-- So many in one call at most.
SELECT fenced_lock.purge('0', 20);
SELECT fenced_lock.purge('10 s', 20);
SELECT fenced_lock.purge('0 s', 20);
SELECT fenced_lock.purge('0 s');
SELECT key FROM fenced_lock.lock_row ORDER BY key;
-- A row that comes again after a purge, in one transaction; a purge undone.
SELECT fencing_token AS t4, owner_token AS o4 FROM fenced_lock.try_acquire('repair:4') \gset
SELECT fenced_lock.release('repair:4', :'o4');
BEGIN;
SELECT fenced_lock.purge('0');
SELECT acquired FROM fenced_lock.try_acquire('repair:4', '1 ms');
SELECT pg_sleep(0.01);
SELECT fenced_lock.purge('0');
ROLLBACK;
SELECT key FROM fenced_lock.lock_row ORDER BY key;

SELECT fenced_lock.purge('-1 s');
SELECT fenced_lock.purge('1 month');
SELECT fenced_lock.purge('300000 years');
SELECT fenced_lock.purge('90000 days');
SELECT fenced_lock.purge('0', 0);
SELECT fenced_lock.purge('0', 1001);
SELECT fenced_lock.purge(NULL, NULL);
BEGIN READ ONLY;
SELECT fenced_lock.purge();
ROLLBACK;

-- Granted apart from allow(), one by one.
CREATE ROLE fl_operator;
SELECT fenced_lock.allow('fl_operator');
SET ROLE fl_operator;
SELECT fenced_lock.force_release('repair:1', 1);
SELECT fenced_lock.purge();
SELECT fenced_lock.raise_fence(1);
RESET ROLE;
GRANT EXECUTE ON FUNCTION fenced_lock.force_release, fenced_lock.purge, fenced_lock.raise_fence TO fl_operator;
SET ROLE fl_operator;
SELECT fencing_token AS t1 FROM fenced_lock.locks WHERE key = 'repair:1' \gset
SELECT fenced_lock.force_release('repair:1', :t1);
SELECT fenced_lock.purge('0') > 0 AS purged;
SELECT fenced_lock.raise_fence(1) > 1 AS raised;
RESET ROLE;
SELECT fenced_lock.disallow('fl_operator');
REVOKE EXECUTE ON FUNCTION fenced_lock.force_release, fenced_lock.purge, fenced_lock.raise_fence FROM fl_operator;
DROP ROLE fl_operator;
