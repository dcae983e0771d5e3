--
-- DROP and CREATE EXTENSION in a session that has used it: nothing that was
-- looked up before is used again.
--
\set SHOW_CONTEXT never
SELECT fencing_token AS before, owner_token AS o FROM fenced_lock.try_acquire('reinstall:1') \gset
SELECT fenced_lock.lock_id('reinstall:1') AS id_before \gset
PREPARE again AS SELECT acquired, fencing_token > $1 AS risen FROM fenced_lock.try_acquire('reinstall:1');
DROP EXTENSION fenced_lock;
SELECT fenced_lock.pin('reinstall:1', 1);
CREATE EXTENSION fenced_lock;
EXECUTE again(:before);
SELECT fenced_lock.lock_id('reinstall:1') <> :id_before AS seed_is_new;
SELECT fenced_lock.renew('reinstall:1', :'o') AS lost;
-- Dropping it while this transaction has used it, and undoing that.
BEGIN;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
DROP EXTENSION fenced_lock;
ROLLBACK;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
BEGIN;
DROP EXTENSION fenced_lock;
CREATE EXTENSION fenced_lock;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
ROLLBACK;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
-- An index that is rebuilt, also concurrently, is still found.
REINDEX TABLE fenced_lock.lock_row;
REINDEX TABLE CONCURRENTLY fenced_lock.lock_row;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
VACUUM FULL fenced_lock.lock_row;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
-- What a superuser has broken is an error that says so, and no crash.
BEGIN;
CREATE INDEX by_lower_key ON fenced_lock.lock_row (lower(key));
SELECT acquired FROM fenced_lock.try_acquire('reinstall:3');
ROLLBACK;
BEGIN;
CREATE INDEX of_released ON fenced_lock.lock_row (expires_at) WHERE owner_digest IS NULL;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:3');
ROLLBACK;
BEGIN;
CREATE INDEX by_expiry ON fenced_lock.lock_row (expires_at);
SELECT acquired FROM fenced_lock.try_acquire('reinstall:3');
ROLLBACK;
BEGIN;
DROP INDEX fenced_lock.lock_row_newest_first;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
ROLLBACK;
BEGIN;
DROP EXTENSION fenced_lock;
CREATE EXTENSION fenced_lock;
DELETE FROM fenced_lock.hash_seed;
SELECT acquired FROM fenced_lock.try_acquire('reinstall:2');
ROLLBACK;
