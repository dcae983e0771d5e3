-- mode_ttl.sql: what mode (b) needs beside the schema: the usual lock table.

CREATE TABLE ttl_lock (
	key text PRIMARY KEY,
	owner uuid NOT NULL,
	expires_at timestamptz NOT NULL
);

GRANT SELECT, INSERT, UPDATE, DELETE ON ttl_lock TO demo_app;
