--
-- Writes that reach a table by a detour: views, rules, cascades of foreign
-- keys, other triggers. What the columns mean: see include/attempt.sql.
--
\set SHOW_CONTEXT never
\getenv abs_srcdir PG_ABS_SRCDIR
\set ECHO none
\i :abs_srcdir/sql/include/attempt.sql
\set ECHO all
SET search_path = guarded, public;
CREATE TABLE wallet (id int PRIMARY KEY, balance int);
INSERT INTO wallet VALUES (1, 100), (2, 100);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');

-- Views, and rules on views and on other tables.
CREATE VIEW plain_view AS SELECT id, balance FROM wallet WHERE balance > 0;
CREATE VIEW view_of_view WITH (security_invoker = true) AS SELECT * FROM plain_view;
CREATE VIEW instead_view AS SELECT id, sum(balance) AS balance FROM wallet GROUP BY id;
CREATE FUNCTION write_instead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE wallet SET balance = NEW.balance WHERE id = NEW.id;
  RETURN NEW;
END $$;
CREATE TRIGGER write_instead INSTEAD OF UPDATE ON instead_view FOR EACH ROW EXECUTE FUNCTION write_instead();
CREATE VIEW rule_view AS SELECT id, sum(balance) AS balance FROM wallet GROUP BY id;
CREATE RULE write_rule AS ON UPDATE TO rule_view DO INSTEAD
  UPDATE wallet SET balance = NEW.balance WHERE id = NEW.id;
CREATE TABLE request (wallet int, amount int);
CREATE RULE book AS ON INSERT TO request DO ALSO
  UPDATE wallet SET balance = balance - NEW.amount WHERE id = NEW.wallet;
SELECT path, t.* FROM (VALUES
  ('INSERT, updatable view', 'INSERT INTO plain_view VALUES (4, 1)', 'path:4'),
  ('UPDATE, updatable view', 'UPDATE plain_view SET balance = 0 WHERE id = 1', 'path:1'),
  ('DELETE, updatable view', 'DELETE FROM plain_view WHERE id = 1', 'path:1'),
  ('UPDATE, view of a view', 'UPDATE view_of_view SET balance = 0 WHERE id = 1', 'path:1'),
  ('view with an INSTEAD OF trigger', 'UPDATE instead_view SET balance = 0 WHERE id = 1', 'path:1'),
  ('view with a rule', 'UPDATE rule_view SET balance = 0 WHERE id = 1', 'path:1'),
  ('rule of another table', 'INSERT INTO request VALUES (1, 10)', 'path:1')
  ) p(path, statement, key), try_path(statement, key) t;

-- Foreign keys. Their actions write rows of the referencing table.
CREATE TABLE customer (id int PRIMARY KEY);
INSERT INTO customer VALUES (0), (1), (2), (3), (5), (6);
CREATE TABLE by_delete (id int, customer int REFERENCES customer ON DELETE CASCADE);
CREATE TABLE by_update (id int, customer int REFERENCES customer ON UPDATE CASCADE);
CREATE TABLE by_null (id int, customer int REFERENCES customer ON DELETE SET NULL);
CREATE TABLE by_default (id int, customer int DEFAULT 0 REFERENCES customer ON DELETE SET DEFAULT);
CREATE TABLE by_key (customer int REFERENCES customer ON UPDATE CASCADE ON DELETE SET NULL);
INSERT INTO by_delete VALUES (1, 1);
INSERT INTO by_update VALUES (1, 6);
INSERT INTO by_null VALUES (2, 2);
INSERT INTO by_default VALUES (3, 3);
INSERT INTO by_key VALUES (5);
DO $$
DECLARE
  tab text;
BEGIN
  FOREACH tab IN ARRAY '{by_delete,by_update,by_null,by_default,by_key}'::text[] LOOP
    EXECUTE format('CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON %I
      FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard(%L)', tab,
      CASE tab WHEN 'by_key' THEN 'path:{customer}' ELSE 'path:{id}' END);
  END LOOP;
END $$;
SELECT path, t.* FROM (VALUES
  ('ON DELETE CASCADE', 'DELETE FROM customer WHERE id = 1', '{path:1}'::text[]),
  ('ON UPDATE CASCADE', 'UPDATE customer SET id = 9 WHERE id = 6', '{path:1}'),
  ('ON DELETE SET NULL', 'DELETE FROM customer WHERE id = 2', '{path:2}'),
  ('ON DELETE SET DEFAULT', 'DELETE FROM customer WHERE id = 3', '{path:3}'),
  ('ON UPDATE CASCADE of a key column', 'UPDATE customer SET id = 4 WHERE id = 5', '{path:5,path:4}'),
  ('ON UPDATE CASCADE of a key column, old key pinned', 'UPDATE customer SET id = 4 WHERE id = 5', '{path:5}'),
  ('ON UPDATE CASCADE of a key column, new key pinned', 'UPDATE customer SET id = 4 WHERE id = 5', '{path:4}'),
  ('ON DELETE SET NULL of a key column', 'DELETE FROM customer WHERE id = 5', '{path:5}'),
  ('TRUNCATE … CASCADE, no TRUNCATE trigger', 'TRUNCATE customer CASCADE', '{path:1}'),
  ('TRUNCATE … CASCADE', 'CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON by_key EXECUTE FUNCTION fenced_lock.guard(''path:{customer}''); TRUNCATE customer CASCADE', '{path:1}')
  ) p(path, statement, keys), try_path(statement, VARIADIC keys) t;

-- Other triggers of the table. One that fires before ours may change the key:
-- the row that is written counts. One that fires after it is not seen.
CREATE TABLE early (id int, balance int);
CREATE TABLE late (id int, balance int);
CREATE TABLE skipped (id int, balance int);
INSERT INTO late VALUES (1, 100), (99, 100);
INSERT INTO skipped VALUES (1, 100);
CREATE FUNCTION set_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.id := TG_ARGV[0];
  RETURN NEW;
END $$;
CREATE FUNCTION skip_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END $$;
CREATE TRIGGER m_guard BEFORE INSERT OR UPDATE OR DELETE ON early FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER m_guard BEFORE INSERT OR UPDATE OR DELETE ON late FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER m_guard BEFORE INSERT OR UPDATE OR DELETE ON skipped FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{id}');
CREATE TRIGGER a_first BEFORE INSERT ON early FOR EACH ROW EXECUTE FUNCTION set_id(4);
CREATE TRIGGER z_last BEFORE INSERT OR UPDATE ON late FOR EACH ROW EXECUTE FUNCTION set_id(1);
CREATE TRIGGER a_first BEFORE INSERT OR UPDATE OR DELETE ON skipped FOR EACH ROW EXECUTE FUNCTION skip_row();
SELECT path, t.* FROM (VALUES
  ('earlier trigger changes the key', 'INSERT INTO early VALUES (1, 0)', 'path:4'),
  ('earlier trigger changes the key, only the first pinned', 'INSERT INTO early VALUES (1, 0)', 'path:1'),
  ('later trigger changes the key', 'INSERT INTO late VALUES (99, 0)', 'path:1'),
  ('later trigger changes the key of an UPDATE', 'UPDATE late SET balance = 0 WHERE id = 99', 'path:1'),
  ('earlier trigger skips the row', 'UPDATE skipped SET balance = 0', 'path:1')
  ) p(path, statement, key), try_path(statement, key) t;

-- A table with two guards asks for both keys.
CREATE TABLE transfer (payer int, payee int, amount int);
INSERT INTO transfer VALUES (1, 2, 100);
CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON transfer FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{payer}');
CREATE TRIGGER zz_guard_too BEFORE INSERT OR UPDATE OR DELETE ON transfer FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('path:{payee}');
SELECT path, t.* FROM (VALUES
  ('two guards', '{path:1,path:2}'::text[]),
  ('two guards, only the first key pinned', '{path:1}'),
  ('two guards, only the second key pinned', '{path:2}')
  ) p(path, keys), try_path('UPDATE transfer SET amount = 0', VARIADIC keys) t;

-- Triggers of other tables that write to a guarded one.
CREATE TABLE booking (wallet int);
CREATE FUNCTION book() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE wallet SET balance = balance - 1 WHERE id = NEW.wallet;
  RETURN NULL;
END $$;
CREATE TRIGGER book AFTER INSERT ON booking FOR EACH ROW EXECUTE FUNCTION book();
CREATE TABLE deferred_booking (wallet int);
CREATE CONSTRAINT TRIGGER book AFTER INSERT ON deferred_booking DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION book();
SELECT path, t.* FROM (VALUES
  ('trigger of another table', 'INSERT INTO booking VALUES (1)'),
  ('deferred trigger of another table', 'INSERT INTO deferred_booking VALUES (1); SET CONSTRAINTS ALL IMMEDIATE')
  ) p(path, statement), try_path(statement, 'path:1') t;
-- One that fires at the commit: what is pinned is still pinned.
\set VERBOSITY sqlstate
BEGIN;
INSERT INTO deferred_booking VALUES (1);
COMMIT;
BEGIN;
SELECT fenced_lock.pin(key, present) FROM path_token WHERE key = 'path:1';
INSERT INTO deferred_booking VALUES (1);
COMMIT;
\set VERBOSITY default
SELECT * FROM wallet WHERE id = 1;
SELECT count(*) AS bookings FROM deferred_booking;

-- What a trigger does not name is not guarded.
CREATE TABLE part (id int, balance int, note text);
INSERT INTO part VALUES (1, 100, '');
CREATE TRIGGER zz_guard BEFORE UPDATE OF balance ON part
  FOR EACH ROW WHEN (NEW.balance < 50) EXECUTE FUNCTION fenced_lock.guard('path:{id}');
SELECT path, t.* FROM (VALUES
  ('column that the trigger names', 'UPDATE part SET balance = 0', 'path:1'),
  ('column that the trigger does not name', 'UPDATE part SET note = ''x''', 'path:1'),
  ('row that WHEN leaves out', 'UPDATE part SET balance = 70', 'path:1'),
  ('DELETE where the trigger has none', 'DELETE FROM part', 'path:1'),
  ('INSERT where the trigger has none', 'INSERT INTO part VALUES (4)', 'path:4')
  ) p(path, statement, key), try_path(statement, key) t;
RESET search_path;
\set ECHO none
\i :abs_srcdir/sql/include/attempt_end.sql
\set ECHO all
