--
-- Keys are exact text: no cutting, no folding, no trimming, in any database.
--
\set SHOW_CONTEXT never
SELECT acquired FROM fenced_lock.try_acquire('');
-- Look-alikes are different keys.
SELECT count(*) AS granted
  FROM unnest(ARRAY[' ', '  ', 'a', 'A', 'a ', ' a', E'a\t', E'a\n', 'é', U&'e\0301', U&'a\200B', '😀', 'ß', 'ss', '%', '_', 'a%'])
       AS k, fenced_lock.try_acquire(k) l
 WHERE l.acquired;
SELECT count(*) AS refused
  FROM unnest(ARRAY[' ', 'a', 'A', 'a ', 'é', U&'e\0301', '😀']) AS k, fenced_lock.try_acquire(k) l
 WHERE NOT l.acquired;
SELECT count(DISTINCT fenced_lock.lock_id(k)) AS ids FROM unnest(ARRAY[' ', 'a', 'A', 'a ', 'é', U&'e\0301', '😀']) AS k;
-- 1 to 1024 bytes, not characters.
SELECT acquired FROM fenced_lock.try_acquire(repeat('x', 1024));
SELECT acquired FROM fenced_lock.try_acquire(repeat('x', 1025));
SELECT acquired FROM fenced_lock.try_acquire(repeat('é', 512));
SELECT acquired FROM fenced_lock.try_acquire(repeat('é', 513));
SELECT acquired FROM fenced_lock.try_acquire(repeat('x', 1000000));
SELECT acquired FROM fenced_lock.try_acquire((SELECT left(string_agg(md5(i::text), ''), 10000) FROM generate_series(1, 400) i));
SELECT acquired FROM fenced_lock.try_acquire((SELECT left(string_agg(md5(i::text), ''), 1024) FROM generate_series(1, 400) i));
SELECT fenced_lock.renew(repeat('x', 1025), gen_random_uuid());
SELECT fenced_lock.release('', gen_random_uuid());
SELECT fenced_lock.pin(repeat('x', 1025), 1);
SELECT max(octet_length(key)) AS longest, min(octet_length(key)) AS shortest FROM fenced_lock.lock_row;
-- A long key does not hide in its prefix.
SELECT l.acquired FROM fenced_lock.try_acquire(repeat('x', 1023) || 'y') l;

-- A message is one line, whatever the key.
SELECT fenced_lock.pin(E'two\nlines\ttab\x7f', 9223372036854775807);
SELECT fenced_lock.release(E'two\nlines', gen_random_uuid());

-- Databases of other encodings and collations.
CREATE DATABASE fl_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE fl_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';
\set database :DBNAME
\c fl_latin1
CREATE EXTENSION fenced_lock;
SET client_encoding = 'UTF8';
SELECT acquired FROM fenced_lock.try_acquire('é');
SET client_encoding = 'LATIN1';
SELECT acquired FROM fenced_lock.try_acquire(convert_from('\xe9', 'LATIN1'));
SELECT octet_length(key) FROM fenced_lock.locks;
\c fl_ascii
CREATE EXTENSION fenced_lock;
SELECT acquired FROM fenced_lock.try_acquire('é');
SELECT acquired FROM fenced_lock.try_acquire('é');
\c :database
DROP DATABASE fl_latin1;
DROP DATABASE fl_ascii;
-- A non-deterministic collation on the caller's side changes nothing.
CREATE COLLATION fl_insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
SELECT acquired FROM fenced_lock.try_acquire('fold' COLLATE fl_insensitive);
SELECT acquired FROM fenced_lock.try_acquire('FOLD' COLLATE fl_insensitive);
SELECT acquired FROM fenced_lock.try_acquire('fold' COLLATE fl_insensitive);
DROP COLLATION fl_insensitive;
