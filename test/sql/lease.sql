--
-- Acquire, renew, release: the plain cases.
--
-- Granted: everything but the refusal's columns is set.
SELECT acquired, fencing_token > 0 AS token, owner_token IS NOT NULL AS owner,
       expires_at - clock_timestamp() BETWEEN '25 s' AND '30 s' AS whole_ttl_left,
       already_held, retry_after_ms, blocked_key
  FROM fenced_lock.try_acquire('lease:1');
-- Refused: one row, with the time until the lease's end and nothing else.
SELECT acquired, fencing_token, owner_token, expires_at, already_held,
       retry_after_ms BETWEEN 20000 AND 30000 AS retry_after, blocked_key
  FROM fenced_lock.try_acquire('lease:1');
-- Other keys are free.
SELECT acquired FROM fenced_lock.try_acquire('lease:2');

-- Tokens rise, over all keys, however a lease ends.
SELECT fencing_token AS t1, owner_token AS o1 FROM fenced_lock.try_acquire('lease:3') \gset
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('lease:4', '100 ms') \gset
SELECT :t2 > :t1 AS risen;
SELECT fenced_lock.release('lease:3', :'o1');
SELECT fencing_token AS t3, owner_token AS o3 FROM fenced_lock.try_acquire('lease:3') \gset
SELECT :t3 > :t2 AS risen, :'o3' <> :'o1' AS owner_is_new;
SELECT pg_sleep(0.15);
SELECT acquired, fencing_token > :t3 AS risen FROM fenced_lock.try_acquire('lease:4');

-- Whoever has lost a lease neither renews nor releases it.
SELECT fenced_lock.renew('lease:4', :'o2') AS superseded;
SELECT fenced_lock.release('lease:4', :'o2') AS superseded;
SELECT fenced_lock.renew('lease:3', :'o1') AS superseded;
SELECT fenced_lock.release('lease:3', :'o1') AS superseded;
SELECT fenced_lock.renew('lease:3', gen_random_uuid()) AS wrong_owner;
SELECT fenced_lock.release('lease:3', gen_random_uuid()) AS wrong_owner;
SELECT fenced_lock.renew('lease:never', gen_random_uuid()) AS never_acquired;
SELECT fenced_lock.release('lease:never', gen_random_uuid()) AS never_acquired;
SELECT count(*) AS written_for_it FROM fenced_lock.lock_row WHERE key = 'lease:never';

-- Renew: now + ttl, same token. An explicit ttl becomes the lease's own.
SELECT fenced_lock.renew('lease:3', :'o3', '10 s') - clock_timestamp() BETWEEN '5 s' AND '10 s' AS shortened;
SELECT fenced_lock.renew('lease:3', :'o3') - clock_timestamp() BETWEEN '5 s' AND '10 s' AS own_ttl;
SELECT fenced_lock.renew('lease:3', :'o3', '1 min') - clock_timestamp() BETWEEN '55 s' AND '60 s' AS lengthened;
SELECT fencing_token = :t3 AS same_token, ttl, renewed_at > acquired_at AS renewed,
       expires_at = renewed_at + ttl AS consistent
  FROM fenced_lock.lock_row WHERE key = 'lease:3';

-- Released: gone for renew, and the row has no owner left.
SELECT fenced_lock.release('lease:3', :'o3');
SELECT fenced_lock.renew('lease:3', :'o3') AS released;
SELECT fenced_lock.release('lease:3', :'o3') AS released;
SELECT owner_digest, expires_at <= clock_timestamp() AS over FROM fenced_lock.lock_row WHERE key = 'lease:3';

-- Expired and nobody there: not to be renewed, but still to be released.
SELECT owner_token AS o5 FROM fenced_lock.try_acquire('lease:5', '50 ms') \gset
SELECT pg_sleep(0.1);
SELECT fenced_lock.renew('lease:5', :'o5') AS expired;
SELECT fenced_lock.release('lease:5', :'o5') AS expired;
SELECT fenced_lock.release('lease:5', :'o5') AS expired_and_released;

-- Hand-deleted row, hand-emptied table: lost, and nothing comes back.
SELECT owner_token AS o6, fencing_token AS t6 FROM fenced_lock.try_acquire('lease:6') \gset
DELETE FROM fenced_lock.lock_row WHERE key = 'lease:6';
SELECT fenced_lock.renew('lease:6', :'o6') AS deleted;
SELECT fenced_lock.release('lease:6', :'o6') AS deleted;
SELECT owner_token AS o7 FROM fenced_lock.try_acquire('lease:7') \gset
TRUNCATE fenced_lock.lock_row;
SELECT fenced_lock.renew('lease:7', :'o7') AS truncated;
SELECT count(*) FROM fenced_lock.lock_row;
SELECT acquired, fencing_token > :t6 AS risen FROM fenced_lock.try_acquire('lease:6');

-- A hand in the very statement can't be waited for.
\set VERBOSITY sqlstate
SELECT owner_token AS o15 FROM fenced_lock.try_acquire('lease:15') \gset
WITH u AS (UPDATE fenced_lock.lock_row SET metadata = '1' WHERE key = 'lease:15' RETURNING key)
SELECT fenced_lock.renew(key, :'o15') FROM u;
WITH u AS (UPDATE fenced_lock.lock_row SET metadata = '1' WHERE key = 'lease:15' RETURNING key)
SELECT fenced_lock.release(key, :'o15') FROM u;
WITH u AS (UPDATE fenced_lock.lock_row SET metadata = '1', expires_at = clock_timestamp() WHERE key = 'lease:15' RETURNING key)
SELECT l.acquired, l.retry_after_ms FROM u, fenced_lock.try_acquire(u.key) l;
\set VERBOSITY default

-- The same owner asks again, its reply having been lost: same token, another
-- ttl of life. Somebody else's owner token does not help.
SELECT gen_random_uuid() AS me \gset
SELECT fencing_token AS t8, already_held FROM fenced_lock.try_acquire('lease:8', '20 s', :'me') \gset
SELECT :'already_held' AS already_held;
SELECT acquired, fencing_token = :t8 AS same_token, owner_token = :'me' AS same_owner, already_held,
       expires_at - clock_timestamp() BETWEEN '35 s' AND '40 s' AS life_renewed, retry_after_ms
  FROM fenced_lock.try_acquire('lease:8', '40 s', :'me');
SELECT ttl FROM fenced_lock.lock_row WHERE key = 'lease:8';
SELECT acquired FROM fenced_lock.try_acquire('lease:8', '40 s', gen_random_uuid());
-- No hold counts: one release ends it.
SELECT fenced_lock.release('lease:8', :'me');
SELECT acquired, fencing_token > :t8 AS risen, already_held FROM fenced_lock.try_acquire('lease:8', '20 s', :'me');

-- (try_acquire(…)).* calls once per column and answers with one lease.
WITH l AS MATERIALIZED (SELECT (fenced_lock.try_acquire('lease:9')).*)
SELECT acquired, fencing_token IS NOT NULL AS token, expires_at IS NOT NULL AS expires, already_held, retry_after_ms FROM l;
SELECT count(DISTINCT l) AS leases, count(*) AS calls
  FROM (SELECT fenced_lock.try_acquire('lease:10') AS l FROM generate_series(1, 5)) s;
-- While it lives, that is, and for one ttl.
SELECT count(DISTINCT (l).fencing_token) AS leases, bool_and((l).expires_at > asked) AS all_live
  FROM (SELECT i, clock_timestamp() AS asked, fenced_lock.try_acquire('lease:short', '20 ms') AS l, pg_sleep(0.05)
          FROM generate_series(1, 2) i OFFSET 0) s;
-- Different keys in one statement are different leases.
SELECT count(DISTINCT (l).fencing_token) AS leases
  FROM (SELECT fenced_lock.try_acquire('lease:many:' || i) AS l FROM generate_series(1, 5) i OFFSET 0) s;

-- The view shows who, since when, until when; never the owner token.
SELECT key, fencing_token > 0 AS token, lifetime, role, pid = pg_backend_pid() AS me,
       application_name, client_address, metadata, acquired_at <= renewed_at AS times,
       expires_at > clock_timestamp() AS live, pinned_by
  FROM fenced_lock.locks WHERE key IN ('lease:8', 'lease:9') ORDER BY key;
SELECT acquired FROM fenced_lock.try_acquire('lease:11', metadata => '{"job": 7}');
SELECT metadata FROM fenced_lock.locks WHERE key = 'lease:11';
-- The next grant has its own metadata.
SELECT owner_token AS o12 FROM fenced_lock.try_acquire('lease:12', metadata => '{"job": 8}') \gset
SELECT fenced_lock.release('lease:12', :'o12');
SELECT count(*) AS shown FROM fenced_lock.locks WHERE key = 'lease:12';
SELECT acquired FROM fenced_lock.try_acquire('lease:12');
SELECT metadata FROM fenced_lock.locks WHERE key = 'lease:12';
-- Metadata of any size, kept out of line over renewals.
SELECT owner_token AS o13 FROM fenced_lock.try_acquire('lease:13',
  metadata => (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 20000) i)) \gset
SELECT fenced_lock.renew('lease:13', :'o13') IS NOT NULL AS renewed;
SELECT jsonb_array_length(metadata) FROM fenced_lock.locks WHERE key = 'lease:13';
SELECT fenced_lock.release('lease:13', :'o13');
SELECT acquired FROM fenced_lock.try_acquire('lease:13');
SELECT metadata FROM fenced_lock.locks WHERE key = 'lease:13';

-- Of an owner token only the digest is stored.
SELECT count(*) AS owner_tokens_stored FROM fenced_lock.lock_row r
 WHERE position(:'me' in r::text) > 0 OR position(replace(:'me', '-', '') in r::text) > 0;
SELECT owner_digest = sha256(uuid_send(:'me')) AS digest FROM fenced_lock.lock_row WHERE key = 'lease:8';

-- What a statement was granted and has ended itself is not answered again.
SELECT (fenced_lock.try_acquire('lease:14', '30 s', :'me')).acquired,
       fenced_lock.renew('lease:14', :'me', '1 ms') IS NOT NULL AS renewed, pg_sleep(0.05) IS NOT NULL AS slept,
       (fenced_lock.try_acquire('lease:14', '30 s', :'me')).acquired AS anew;
SELECT count(*) AS held FROM fenced_lock.locks WHERE key = 'lease:14';
