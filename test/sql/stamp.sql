--
-- The stamp column: which grant wrote a row last. Always written by the guard,
-- whatever the statement says, and never believed.
--
\set SHOW_CONTEXT never
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  rows bigint;
BEGIN
  EXECUTE statement;
  GET DIAGNOSTICS rows = ROW_COUNT;
  RETURN format('%s rows', rows);
EXCEPTION WHEN OTHERS THEN
  RETURN format('%s: %s', SQLSTATE, regexp_replace(SQLERRM, '\d{10,}', 'N', 'g'));
END $$;
CREATE TABLE wallet (id int PRIMARY KEY, balance int NOT NULL, fence bigint);
INSERT INTO wallet VALUES (1, 100, NULL), (2, 100, 0), (3, 100, NULL);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('stamp:{id}', 'fence');
SELECT fencing_token AS t1, owner_token AS o1 FROM fenced_lock.try_acquire('stamp:1') \gset
SELECT fencing_token AS t2, owner_token AS o2 FROM fenced_lock.try_acquire('stamp:2') \gset
SELECT fencing_token AS t4, owner_token AS o4 FROM fenced_lock.try_acquire('stamp:4') \gset
CREATE VIEW stamps AS SELECT w.id, w.balance,
  coalesce((SELECT 'stamped by stamp:' || substr(key, 7) FROM fenced_lock.lock_row WHERE fencing_token = w.fence), w.fence::text, 'none') AS stamp
  FROM wallet w ORDER BY id;

-- Whatever is written there: by INSERT, UPDATE, COPY, ON CONFLICT, MERGE.
SELECT fenced_lock.pin('stamp:4', :t4), outcome('INSERT INTO wallet VALUES (4, 1, 17)');
BEGIN;
SELECT fenced_lock.pin('stamp:4', :t4);
DELETE FROM wallet WHERE id = 4;
COPY wallet FROM STDIN;
4	2	17
\.
SELECT * FROM stamps WHERE id = 4;
INSERT INTO wallet VALUES (4, 3, 17) ON CONFLICT (id) DO UPDATE SET balance = 3, fence = EXCLUDED.fence + 1;
SELECT * FROM stamps WHERE id = 4;
MERGE INTO wallet w USING (VALUES (4)) v(i) ON w.id = i WHEN MATCHED THEN UPDATE SET balance = 4, fence = 9223372036854775807;
SELECT * FROM stamps WHERE id = 4;
UPDATE wallet SET balance = 5, fence = NULL WHERE id = 4;
UPDATE wallet SET fence = -1 WHERE id = 4;
UPDATE wallet SET balance = 6 WHERE id = 4;
COMMIT;
SELECT * FROM stamps;
UPDATE wallet SET fence = 1 FROM fenced_lock.pin('stamp:1', :t1) WHERE id = 1 RETURNING fence = :t1 AS returned_as_stamped;
-- What an earlier trigger puts there counts as little.
CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.fence := 9223372036854775807;
  RETURN NEW;
END $$;
CREATE TRIGGER a_forge BEFORE INSERT OR UPDATE ON wallet FOR EACH ROW EXECUTE FUNCTION forge();
UPDATE wallet SET balance = 7 FROM fenced_lock.pin('stamp:1', :t1) WHERE id = 1;
SELECT * FROM stamps WHERE id = 1;
DROP TRIGGER a_forge ON wallet;
-- What a later one puts there stays, so that the next write is refused.
CREATE TRIGGER zzz_forge BEFORE UPDATE ON wallet FOR EACH ROW EXECUTE FUNCTION forge();
BEGIN;
SELECT fenced_lock.pin('stamp:1', :t1);
SELECT outcome('UPDATE wallet SET balance = 8 WHERE id = 1');
SELECT * FROM stamps WHERE id = 1;
SELECT outcome('UPDATE wallet SET balance = 9 WHERE id = 1');
ROLLBACK;
DROP TRIGGER zzz_forge ON wallet;

-- Never believed: as high as it may be, it does not stand for a pin.
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallet SET balance = 0, fence = 9223372036854775807 WHERE id = 1'),
  ('UPDATE wallet SET balance = 0, fence = fence WHERE id = 1'),
  ('INSERT INTO wallet VALUES (5, 0, 9223372036854775807)'),
  ('INSERT INTO wallet SELECT 1, 0, fence FROM wallet WHERE id = 1 ON CONFLICT (id) DO UPDATE SET fence = EXCLUDED.fence')) v(statement);
-- The saves of an ORM. A stale worker reads the row anew, with its successor's
-- stamp, and saves all columns; or what has changed; or many rows; or a time.
SELECT fenced_lock.release('stamp:1', :'o1');
SELECT fencing_token AS t1b, owner_token AS o1b FROM fenced_lock.try_acquire('stamp:1') \gset
UPDATE wallet SET balance = 50 FROM fenced_lock.pin('stamp:1', :t1b) WHERE id = 1;
SELECT * FROM stamps WHERE id = 1;
SELECT outcome(format('UPDATE wallet SET balance = %s, fence = %s WHERE id = 1', balance - 10, fence)) AS full_row FROM wallet WHERE id = 1;
SELECT outcome(format('UPDATE wallet SET balance = %s, fence = %s WHERE id = 1 AND fence = %s', balance - 10, fence, fence)) AS full_row_with_check FROM wallet WHERE id = 1;
SELECT outcome(format('UPDATE wallet SET balance = %s, fence = %s FROM fenced_lock.pin(%L, %s) WHERE id = 1', balance - 10, fence, 'stamp:1', :t1)) AS full_row_and_old_pin FROM wallet WHERE id = 1;
SELECT outcome('UPDATE wallet SET balance = 40 WHERE id = 1') AS partial;
SELECT outcome('UPDATE wallet SET balance = balance * 2') AS bulk;
ALTER TABLE wallet ADD updated_at timestamptz;
SELECT outcome('UPDATE wallet SET updated_at = now() WHERE id = 1') AS touch;
ALTER TABLE wallet DROP updated_at CASCADE;
-- The holder saves as often as it likes, all columns or some, with an old stamp.
BEGIN;
SELECT fenced_lock.pin('stamp:1', :t1b);
SELECT outcome(format('UPDATE wallet SET balance = 49, fence = %s WHERE id = 1', :t1)) AS full_row;
SELECT outcome('UPDATE wallet SET balance = 48 WHERE id = 1') AS partial;
SELECT outcome('UPDATE wallet SET balance = 47, fence = NULL WHERE id = 1') AS full_row_without_stamp;
COMMIT;
SELECT outcome(format('UPDATE wallet SET balance = 46 FROM fenced_lock.pin(%L, %s) WHERE id = 1', 'stamp:1', :t1b)) AS later;
SELECT * FROM stamps WHERE id = 1;

-- It does not go down for the same key. A stamp above a current pin was not
-- issued by this database: refused, not overwritten.
ALTER TABLE wallet DISABLE TRIGGER zz_guard;
UPDATE wallet SET fence = :t4 + 1000 WHERE id = 4;
ALTER TABLE wallet ENABLE TRIGGER zz_guard;
BEGIN;
SELECT fenced_lock.pin('stamp:4', :t4);
SELECT statement, outcome(statement) FROM (VALUES
  ('UPDATE wallet SET balance = 3 WHERE id = 4'),
  ('UPDATE wallet SET fence = NULL WHERE id = 4'),
  ('DELETE FROM wallet WHERE id = 4'),
  ('INSERT INTO wallet VALUES (4, 3) ON CONFLICT (id) DO UPDATE SET balance = 3'),
  ('INSERT INTO wallet VALUES (4, 3) ON CONFLICT (id) DO NOTHING'),
  ('MERGE INTO wallet w USING (VALUES (4)) v(i) ON w.id = i WHEN MATCHED THEN DELETE')) v(statement);
COMMIT;

-- A stamp is compared only while the row's key stays (MECH 29): the stamps of
-- two keys have nothing to do with each other. Key 2's token is the older one.
SELECT :t2 < :t4 AS older;
ALTER TABLE wallet DISABLE TRIGGER zz_guard;
UPDATE wallet SET fence = :t4 WHERE id = 4;
ALTER TABLE wallet ENABLE TRIGGER zz_guard;
BEGIN;
SELECT fenced_lock.pin('stamp:2', :t2), fenced_lock.pin('stamp:4', :t4);
DELETE FROM wallet WHERE id = 2;
SELECT outcome('UPDATE wallet SET id = 2 WHERE id = 4');
SELECT * FROM stamps WHERE id = 2;
-- And it may go on from there, and back.
SELECT outcome('UPDATE wallet SET balance = 1 WHERE id = 2');
SELECT outcome('UPDATE wallet SET id = 4 WHERE id = 2');
SELECT * FROM stamps WHERE id = 4;
ROLLBACK;

-- A row that moves between partitions keeps the rule: deleted and inserted.
CREATE TABLE ledger (id int, region text, amount int, fence bigint) PARTITION BY LIST (region);
CREATE TABLE ledger_eu (fence bigint, amount int, region text, id int);
ALTER TABLE ledger ATTACH PARTITION ledger_eu FOR VALUES IN ('eu');
CREATE TABLE ledger_us PARTITION OF ledger FOR VALUES IN ('us');
INSERT INTO ledger VALUES (2, 'eu', 1, NULL), (4, 'eu', 1, :t4 + 1000);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('stamp:{id}', 'fence');
BEGIN;
SELECT fenced_lock.pin('stamp:2', :t2), fenced_lock.pin('stamp:4', :t4);
SELECT outcome('UPDATE ledger SET region = ''us'', fence = 17 WHERE id = 2');
SELECT outcome('UPDATE ledger SET region = ''us'' WHERE id = 4');
SELECT tableoid::regclass, id, fence = :t2 AS stamped FROM ledger WHERE id = 2;
COMMIT;

-- Of type bigint, in each of the ways to say it, and nothing else.
CREATE DOMAIN token AS bigint;
CREATE FUNCTION try_stamp(type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  said text;
BEGIN
  EXECUTE format('CREATE TABLE stamped (id int, fence %s)', type);
  CREATE TRIGGER guard BEFORE INSERT ON stamped FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('stamp:{id}', 'fence');
  said := outcome('INSERT INTO stamped VALUES (9)');
  RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
  RETURN said;
END $$;
SELECT type, try_stamp(type) FROM unnest('{bigint,int8 NOT NULL,bigint DEFAULT 3,bigserial,bigint CHECK (fence > 0),smallint,integer,numeric,text,double precision,xid8,token,bigint[]}'::text[]) type;
-- NOT NULL and CHECK look at what the guard has written.
CREATE TABLE strict (id int, fence bigint NOT NULL CHECK (fence > 1000000), twice bigint GENERATED ALWAYS AS (fence * 2) STORED, UNIQUE (id, fence));
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON strict FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('stamp:{id}', 'fence');
INSERT INTO strict(id) SELECT 1 FROM fenced_lock.pin('stamp:1', :t1b);
UPDATE strict SET fence = NULL FROM fenced_lock.pin('stamp:1', :t1b) WHERE id = 1;
SELECT fence = :t1b AS stamped, twice = 2 * :t1b AS twice FROM strict;

-- A stamp is found behind columns of any length and behind nulls.
CREATE TABLE stamped (a text, b int2, c text, fence bigint, d text, id int);
CREATE TRIGGER stamped_guard BEFORE INSERT OR UPDATE OR DELETE ON stamped FOR EACH ROW
  EXECUTE FUNCTION fenced_lock.guard('stamped', 'fence');
ALTER TABLE stamped DISABLE TRIGGER USER;
INSERT INTO stamped VALUES ('x', 1, 'yy', 1, 'zzz', 1), (repeat('x', 200), 2, repeat('y', 3), 2, NULL, 2),
  (NULL, NULL, NULL, 3, 'z', 3), ('', NULL, 'y', 4, '', 4), ('x', 5, 'y', NULL, 'z', 5), (NULL, 6, 'yyyyyyy', NULL, NULL, 6);
ALTER TABLE stamped ADD short int2 DEFAULT 9;
ALTER TABLE stamped ENABLE TRIGGER USER;
SELECT fencing_token AS ts FROM fenced_lock.try_acquire('stamped') \gset
CREATE INDEX stamped_fence ON stamped (fence);
UPDATE stamped SET id = id + 10 FROM fenced_lock.pin('stamped', :ts) RETURNING id, fence = :ts AS stamped;
SET enable_seqscan = off;
SELECT count(*) FROM stamped WHERE fence = :ts;
RESET enable_seqscan;
SELECT left(a, 3) AS a, b, c, fence = :ts AS stamped, d, id, short FROM stamped ORDER BY id;
INSERT INTO stamped SELECT 'x', 7, 'y', f, 'z', 17 FROM fenced_lock.pin('stamped', :ts), (VALUES (NULL), (1)) v(f);
SELECT a, b, c, fence = :ts AS stamped, d, id, short FROM stamped WHERE id = 17;

DROP TABLE stamped;

SELECT fenced_lock.release('stamp:1', :'o1b'), fenced_lock.release('stamp:2', :'o2'), fenced_lock.release('stamp:4', :'o4');
DROP VIEW stamps;
DROP TABLE wallet, ledger, strict;
DROP DOMAIN token;
DROP FUNCTION outcome, forge, try_stamp;
