--
-- A lease lives in a table: it commits and rolls back with its transaction.
--
\set SHOW_CONTEXT never
CREATE TABLE tx_wallets (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO tx_wallets SELECT i, 100 FROM generate_series(1, 9) i;
CREATE TRIGGER tx_guard BEFORE INSERT OR UPDATE OR DELETE ON tx_wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('tx:{id}');
CREATE FUNCTION held(k text) RETURNS boolean LANGUAGE sql AS
  $$SELECT EXISTS (SELECT FROM fenced_lock.locks WHERE key = k AND expires_at > clock_timestamp())$$;
\set VERBOSITY sqlstate

-- Rolled back: a ghost holder can do nothing, the next token is higher.
BEGIN;
SELECT fencing_token AS t, owner_token AS o FROM fenced_lock.try_acquire('tx:1') \gset
UPDATE tx_wallets SET balance = 0 WHERE id = 1;
ROLLBACK;
SELECT held('tx:1'), balance FROM tx_wallets WHERE id = 1;
SELECT fenced_lock.renew('tx:1', :'o');
SELECT fenced_lock.release('tx:1', :'o');
SELECT fenced_lock.pin('tx:1', :t);
UPDATE tx_wallets SET balance = 0 WHERE id = 1;
SELECT acquired, fencing_token > :t AS risen FROM fenced_lock.try_acquire('tx:1');
SELECT fenced_lock.pin('tx:1', :t);

-- Savepoints: what was acquired in one goes with its rollback.
BEGIN;
SAVEPOINT s;
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('tx:2') \gset
UPDATE tx_wallets SET balance = 0 WHERE id = 2;
ROLLBACK TO s;
SELECT held('tx:2');
UPDATE tx_wallets SET balance = 0 WHERE id = 2;
ROLLBACK TO s;
SELECT acquired, fencing_token > :t2 AS risen FROM fenced_lock.try_acquire('tx:2');
RELEASE s;
UPDATE tx_wallets SET balance = 50 WHERE id = 2;
COMMIT;
SELECT held('tx:2'), balance FROM tx_wallets WHERE id = 2;
-- Likewise what was pinned, at any depth.
SELECT fencing_token AS t3, owner_token AS o3 FROM fenced_lock.try_acquire('tx:3') \gset
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT fenced_lock.pin('tx:3', :t3);
RELEASE b;
UPDATE tx_wallets SET balance = 1 WHERE id = 3;
ROLLBACK TO a;
UPDATE tx_wallets SET balance = 2 WHERE id = 3;
ROLLBACK TO a;
SELECT fenced_lock.pin('tx:3', :t3);
SAVEPOINT c;
SELECT fenced_lock.pin('tx:3', :t3);
ROLLBACK TO c;
UPDATE tx_wallets SET balance = 3 WHERE id = 3;
COMMIT;
SELECT balance FROM tx_wallets WHERE id = 3;
-- A release that is rolled back was none: the pin of before is in force.
BEGIN;
SELECT fenced_lock.pin('tx:3', :t3);
SAVEPOINT s;
SELECT fenced_lock.release('tx:3', :'o3');
SAVEPOINT deeper;
UPDATE tx_wallets SET balance = 4 WHERE id = 3;
ROLLBACK TO s;
UPDATE tx_wallets SET balance = 5 WHERE id = 3;
COMMIT;
SELECT held('tx:3'), balance FROM tx_wallets WHERE id = 3;
-- One whose savepoint was kept is one.
BEGIN;
SELECT fenced_lock.pin('tx:3', :t3);
SAVEPOINT s;
SELECT fenced_lock.release('tx:3', :'o3');
RELEASE s;
UPDATE tx_wallets SET balance = 6 WHERE id = 3;
ROLLBACK;
SELECT held('tx:3');
-- A swallowed exception is a savepoint too.
DO $$
BEGIN
  BEGIN
    PERFORM fenced_lock.try_acquire('tx:4');
    RAISE EXCEPTION 'swallowed';
  EXCEPTION WHEN raise_exception THEN
    NULL;
  END;
END $$;
SELECT held('tx:4');

-- Release and acquire anew in one transaction: the new token counts.
SELECT fencing_token AS t5, owner_token AS o5 FROM fenced_lock.try_acquire('tx:5') \gset
BEGIN;
SELECT fenced_lock.pin('tx:5', :t5);
SELECT fenced_lock.release('tx:5', :'o5');
SELECT fencing_token > :t5 AS risen FROM fenced_lock.try_acquire('tx:5');
UPDATE tx_wallets SET balance = 1 WHERE id = 5;
SAVEPOINT s;
SELECT fenced_lock.pin('tx:5', :t5);
ROLLBACK;
SELECT held('tx:5');
SELECT fenced_lock.pin('tx:5', :t5);
-- A pinned lease that lapses may be taken over by its own transaction.
SELECT fencing_token AS t6 FROM fenced_lock.try_acquire('tx:6', '100 ms') \gset
BEGIN;
SELECT fenced_lock.pin('tx:6', :t6);
SELECT pg_sleep(0.15);
SELECT acquired, fencing_token > :t6 AS risen FROM fenced_lock.try_acquire('tx:6');
UPDATE tx_wallets SET balance = 1 WHERE id = 6;
COMMIT;

-- Acquired in this transaction is pinned; so is what its owner had already.
BEGIN;
SELECT fencing_token AS t7, owner_token AS o7 FROM fenced_lock.try_acquire('tx:7') \gset
UPDATE tx_wallets SET balance = 1 WHERE id = 7;
SELECT fenced_lock.pin('tx:7', :t7);
COMMIT;
BEGIN;
SELECT already_held FROM fenced_lock.try_acquire('tx:7', '30 s', :'o7');
UPDATE tx_wallets SET balance = 2 WHERE id = 7;
COMMIT;
SELECT balance FROM tx_wallets WHERE id = 7;

-- The clock does not stand still in a transaction.
BEGIN;
SELECT now() IS NOT NULL AS begun;
SELECT pg_sleep(0.3);
SELECT expires_at - clock_timestamp() > '180 ms' AS whole_ttl, expires_at - now() > '480 ms' AS not_from_the_start
  FROM fenced_lock.try_acquire('tx:8', '200 ms');
COMMIT;
BEGIN;
SELECT owner_token AS o8, fencing_token AS t8 FROM fenced_lock.try_acquire('tx:clock', '200 ms') \gset
COMMIT;
BEGIN;
SELECT now() IS NOT NULL AS begun;
SELECT pg_sleep(0.25);
SELECT fenced_lock.renew('tx:clock', :'o8') AS lapsed;
SAVEPOINT s;
SELECT fenced_lock.pin('tx:clock', :t8);
ROLLBACK TO s;
SELECT acquired FROM fenced_lock.try_acquire('tx:clock');
COMMIT;

-- A lost race does not poison the transaction.
BEGIN;
INSERT INTO tx_wallets SELECT 10, 1 FROM fenced_lock.try_acquire('tx:10') WHERE false;
SELECT acquired FROM fenced_lock.try_acquire('tx:1');
SELECT fenced_lock.renew('tx:1', gen_random_uuid());
SELECT fenced_lock.release('tx:1', gen_random_uuid());
SELECT acquired FROM fenced_lock.try_acquire('tx:11');
COMMIT;
SELECT held('tx:11');

-- From REPEATABLE READ on: not inside a block, since its reads may be old.
\set VERBOSITY default
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT acquired FROM fenced_lock.try_acquire('tx:12');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT acquired FROM fenced_lock.try_acquire('tx:12');
ROLLBACK;
\set VERBOSITY sqlstate
-- A single statement is fine at every level, and renew, release and pin inside a block.
SET default_transaction_isolation = 'serializable';
SELECT acquired, fencing_token AS t12, owner_token AS o12 FROM fenced_lock.try_acquire('tx:9') \gset
SELECT :'acquired' AS acquired;
BEGIN;
SELECT fenced_lock.pin('tx:9', :t12);
UPDATE tx_wallets SET balance = 1 WHERE id = 9;
SELECT fenced_lock.renew('tx:9', :'o12') IS NOT NULL AS renewed;
SELECT fenced_lock.release('tx:9', :'o12');
COMMIT;
-- A function around both is not seen as a block; the guard sees it.
DO $$
BEGIN
  PERFORM fenced_lock.try_acquire('tx:9');
  UPDATE tx_wallets SET balance = 2 WHERE id = 9;
END $$;
SET default_transaction_isolation = 'repeatable read';
DO $$
BEGIN
  PERFORM fenced_lock.try_acquire('tx:9');
  UPDATE tx_wallets SET balance = 2 WHERE id = 9;
END $$;
RESET default_transaction_isolation;
DO $$
BEGIN
  PERFORM fenced_lock.try_acquire('tx:9');
  UPDATE tx_wallets SET balance = 2 WHERE id = 9;
END $$;
SELECT balance FROM tx_wallets WHERE id = 9;
-- READ COMMITTED: grant and guarded write in one statement are as stale.
WITH l AS (SELECT * FROM fenced_lock.try_acquire('tx:4'))
UPDATE tx_wallets SET balance = 3 FROM l WHERE id = 4;
SELECT held('tx:4');

-- Cursors: a portal opened before a savepoint fails in it; the lease stays.
BEGIN;
DECLARE c CURSOR FOR SELECT (fenced_lock.try_acquire('tx:cursor')).acquired, 1/x FROM (VALUES (1), (0)) v(x);
FETCH 1 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
ROLLBACK TO s;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 17996
   AND pid = pg_backend_pid() AND mode = 'ExclusiveLock' AND granted;
COMMIT;
SELECT held('tx:cursor');

-- Settings are as before once the transaction ends.
SHOW idle_in_transaction_session_timeout;
BEGIN;
SELECT acquired FROM fenced_lock.try_acquire('tx:idle', '20 s');
SHOW idle_in_transaction_session_timeout;
SAVEPOINT s;
SELECT acquired FROM fenced_lock.try_acquire('tx:idle2', '10 ms');
SHOW idle_in_transaction_session_timeout;
ROLLBACK TO s;
SHOW idle_in_transaction_session_timeout;
COMMIT;
SHOW idle_in_transaction_session_timeout;
SET idle_in_transaction_session_timeout = '5 s';
BEGIN;
SELECT acquired FROM fenced_lock.try_acquire('tx:idle3', '20 s');
SHOW idle_in_transaction_session_timeout;
COMMIT;
RESET idle_in_transaction_session_timeout;
SET fenced_lock.pin_idle_timeout = off;
BEGIN;
SELECT acquired FROM fenced_lock.try_acquire('tx:idle4', '20 s');
SHOW idle_in_transaction_session_timeout;
COMMIT;
RESET fenced_lock.pin_idle_timeout;

-- Nothing of ours is left in pg_locks once a transaction has ended.
SELECT count(*) AS left_behind FROM pg_locks WHERE locktype = 'advisory';
DROP TABLE tx_wallets;
DROP FUNCTION held;
