-- Takes away what attempt.sql has made, and the tables that were written to.
SET client_min_messages = warning;
SELECT bool_and(fenced_lock.release(key, owner)) AS all_released FROM path_token;
DROP SCHEMA guarded CASCADE;
DROP TABLE path_token;
DROP FUNCTION grant_key, guarded_rows, attempt, attempts, try_path;
RESET client_min_messages;
