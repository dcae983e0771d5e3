--
-- Pins: proof that holds a key to the end of the transaction.
--
\set SHOW_CONTEXT never
CREATE TABLE pin_wallets (id int PRIMARY KEY, balance int NOT NULL);
CREATE TRIGGER pin_guard BEFORE INSERT OR UPDATE OR DELETE ON pin_wallets
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('pin:{id}');
SELECT fencing_token AS t1, owner_token AS o1 FROM fenced_lock.try_acquire('pin:1') \gset
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('pin:2') \gset
-- Messages name tokens and keys; tokens differ from run to run.
\set VERBOSITY sqlstate
-- Current, never issued (the row's is lower), above the sequence, stale, unknown key.
SELECT fenced_lock.pin('pin:1', :t1);
SELECT fenced_lock.pin('pin:1', :t2);
SELECT fenced_lock.pin('pin:1', :t2 + 1000000);
SELECT fenced_lock.pin('pin:none', :t2 + 1000000);
SELECT fenced_lock.pin('pin:none', :t2);
SELECT fenced_lock.release('pin:1', :'o1');
SELECT fenced_lock.pin('pin:1', :t1);
SELECT fencing_token AS t3 FROM fenced_lock.try_acquire('pin:1') \gset
SELECT fenced_lock.pin('pin:1', :t1);
SELECT fencing_token AS t4 FROM fenced_lock.try_acquire('pin:4', '50 ms') \gset
SELECT pg_sleep(0.1);
SELECT fenced_lock.pin('pin:4', :t4);
-- The row is gone: its token was issued once.
DELETE FROM fenced_lock.lock_row WHERE key = 'pin:4';
SELECT fenced_lock.pin('pin:4', :t4);
\set VERBOSITY default

-- One message holds all facts, in one line.
CREATE FUNCTION pin_message(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, regexp_replace(regexp_replace(SQLERRM, '\d{10,}', 'N', 'g'), ' at 20.*', ' at …'));
END $$;
SELECT pin_message(format('SELECT fenced_lock.pin(%L, %s)', key, token)) FROM (VALUES
  ('pin:1', :t3), ('pin:1', :t1), ('pin:2', :t4 + 1000000), ('pin:none', :t4 + 1000000), ('pin:none', :t2)) v(key, token);
SELECT fencing_token AS t5, owner_token AS o5 FROM fenced_lock.try_acquire('pin:5', '50 ms') \gset
SELECT pg_sleep(0.1);
SELECT pin_message(format('SELECT fenced_lock.pin(%L, %s)', 'pin:5', :t5));
SELECT fenced_lock.release('pin:5', :'o5');
SELECT pin_message(format('SELECT fenced_lock.pin(%L, %s)', 'pin:5', :t5));
-- What was swallowed with its savepoint has pinned nothing.
BEGIN;
SELECT pin_message(format('SELECT fenced_lock.pin(%L, %s), 1/0', 'pin:2', :t2));
SELECT pinned_by FROM fenced_lock.locks WHERE key = 'pin:2';
ROLLBACK;

-- Pinned for the transaction, not longer, and by whom is shown.
BEGIN;
SELECT fenced_lock.pin('pin:2', :t2);
SELECT fenced_lock.pin('pin:2', :t2) AS again;
SELECT pinned_by = ARRAY[pg_backend_pid()] AS pinned_by_me FROM fenced_lock.locks WHERE key = 'pin:2';
INSERT INTO pin_wallets VALUES (2, 100);
COMMIT;
SELECT pinned_by FROM fenced_lock.locks WHERE key = 'pin:2';
\set VERBOSITY sqlstate
UPDATE pin_wallets SET balance = 0;
\set VERBOSITY default

-- A pin outlasts the lease: that is what it is for.
SELECT fencing_token AS t6 FROM fenced_lock.try_acquire('pin:6', '200 ms') \gset
BEGIN;
SELECT fenced_lock.pin('pin:6', :t6);
SELECT pg_sleep(0.3);
INSERT INTO pin_wallets VALUES (6, 100);
SELECT expires_at < clock_timestamp() AS lapsed, pinned_by IS NOT NULL AS pinned FROM fenced_lock.locks WHERE key = 'pin:6';
SELECT fenced_lock.pin('pin:6', :t6) AS again;
COMMIT;
SELECT count(*) AS shown FROM fenced_lock.locks WHERE key = 'pin:6';

-- Sets: all or an error; each key once, in any order.
SELECT fenced_lock.pin_all('{pin:2,pin:2}', :t2);
SELECT pin_message(format('SELECT fenced_lock.pin_all(%L, %s)', '{pin:2,pin:1}', :t2));
BEGIN;
SELECT fenced_lock.pin_all('{pin:2,pin:1}', :t2) IS NOT NULL AS unreached FROM (SELECT 1 WHERE false) s;
SELECT fenced_lock.pin_all(ARRAY['pin:2'], :t2);
UPDATE pin_wallets SET balance = 50 WHERE id = 2;
ROLLBACK;

-- A release ends what was pinned: later writes of its transaction are refused.
BEGIN;
SELECT fenced_lock.pin('pin:2', :t2);
UPDATE pin_wallets SET balance = balance + 1 WHERE id = 2;
SELECT fenced_lock.release('pin:2', :'o2');
SAVEPOINT s;
\set VERBOSITY sqlstate
UPDATE pin_wallets SET balance = balance + 1 WHERE id = 2;
ROLLBACK TO s;
SELECT fenced_lock.pin('pin:2', :t2);
\set VERBOSITY default
ROLLBACK TO s;
COMMIT;
SELECT balance FROM pin_wallets WHERE id = 2;
DROP TABLE pin_wallets;
DROP FUNCTION pin_message;
