-- Runs a write under each of the five conditions that a guard tells apart: with
-- a pin of its key, after a stale token was refused, without any pin, with the
-- pin of another key, after a token was refused that was never issued. (A client
-- that ignores the refusal of its pin writes all the same.) To be included, with
-- tables of schema guarded being what is looked at, and keys 'path:N'.

CREATE SCHEMA guarded;
CREATE TABLE path_token (key text PRIMARY KEY, owner uuid, present bigint, past bigint);

-- Grants a key twice: the second token is current, the first stale.
CREATE FUNCTION grant_key(k text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  former fenced_lock.lease;
  latter fenced_lock.lease;
BEGIN
  former := fenced_lock.try_acquire(k, '30 min');
  PERFORM fenced_lock.release(k, former.owner_token);
  latter := fenced_lock.try_acquire(k, '30 min');
  INSERT INTO path_token VALUES (k, latter.owner_token, latter.fencing_token, former.fencing_token);
END $$;

-- All rows of all tables, and in which table they lie.
CREATE FUNCTION guarded_rows() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
  tab regclass;
  found text;
  result text := '';
BEGIN
  FOR tab IN SELECT oid FROM pg_class
              WHERE relnamespace = 'guarded'::regnamespace AND relkind = 'r' ORDER BY relname LOOP
    EXECUTE format('SELECT string_agg(t::text, '' '' ORDER BY t::text) FROM ONLY %s t', tab) INTO found;
    result := concat(result, tab, ': ', found, E'\n');
  END LOOP;
  RETURN result;
END $$;

-- SQLSTATE of a refused pin, and what became of the write: its SQLSTATE,
-- "written", or "nothing" if all is as before. Leaves no trace.
CREATE FUNCTION attempt(statement text, keys text[], condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  k text;
  said text;
  outcome text;
  before text := guarded_rows();
BEGIN
  IF condition = 'another key''s pin' THEN
    keys := '{path:99}';
  ELSIF condition = 'no pin' THEN
    keys := '{}';
  END IF;
  FOREACH k IN ARRAY keys LOOP
    BEGIN
      PERFORM fenced_lock.pin(k, CASE condition WHEN 'stale token' THEN past
                                 WHEN 'never issued' THEN present + 1000000
                                 ELSE present END)
         FROM path_token WHERE key = k;
    EXCEPTION WHEN OTHERS THEN
      said := SQLSTATE;
    END;
  END LOOP;
  BEGIN
    BEGIN
      EXECUTE statement;
      outcome := 'nothing';
    EXCEPTION WHEN OTHERS THEN
      outcome := SQLSTATE;
    END;
    IF guarded_rows() <> before THEN
      outcome := CASE outcome WHEN 'nothing' THEN 'written' ELSE outcome || ' but written' END;
    END IF;
    RAISE SQLSTATE 'UNDO1';
  EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
    RETURN concat_ws(' ', said, outcome);
  END;
END $$;

-- One attempt for each condition, in a subtransaction that takes its pins along.
CREATE FUNCTION attempts(statement text, keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  condition text;
  results text[];
BEGIN
  FOREACH condition IN ARRAY ARRAY['current pin', 'stale token', 'no pin', 'another key''s pin', 'never issued'] LOOP
    BEGIN
      results := results || attempt(statement, keys, condition);
      RAISE SQLSTATE 'UNDO2';
    EXCEPTION WHEN SQLSTATE 'UNDO2' THEN
      NULL;
    END;
  END LOOP;
  RETURN results;
END $$;

-- guarded: passes with the pin and writes with nothing else. refused: does not
-- pass with the pin either. not guarded: writes where it should not.
CREATE FUNCTION try_path(statement text, VARIADIC keys text[])
RETURNS TABLE (verdict text, "current pin" text, "stale token" text, "no pin" text, "another key's pin" text, "never issued" text)
LANGUAGE plpgsql AS $$
DECLARE
  r text[] := attempts(statement, keys);
BEGIN
  verdict := CASE
    WHEN array_to_string(r[2:], ' ') ~ 'written' THEN 'not guarded'
    WHEN (r[1] = 'written' OR r[1] = 'nothing' AND r[3] = 'LF101')
     AND NOT EXISTS (SELECT FROM unnest(r[2:]) other WHERE other !~ '(LF101|nothing)$') THEN 'guarded'
    WHEN r[1] = 'nothing' THEN 'nothing to guard'
    ELSE 'refused' END;
  "current pin" := r[1];
  "stale token" := r[2];
  "no pin" := r[3];
  "another key's pin" := r[4];
  "never issued" := r[5];
  RETURN NEXT;
END $$;

SELECT count(grant_key('path:' || i)) AS granted FROM generate_series(1, 5) i;
SELECT count(grant_key('path:99')) AS granted;
