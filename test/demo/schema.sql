-- schema.sql: the wallets, e-mails and queue of the demo, the same in each mode.
-- Variables: wallets, cents (in each wallet), emails, seed.

-- Nothing here stops a wallet from going below zero or an e-mail from being
-- charged twice.  A CHECK and a UNIQUE constraint could, in a story as small as
-- this one; the demo is about the lock, for all that no constraint can express.

CREATE TABLE wallets (
	id integer PRIMARY KEY,
	balance integer NOT NULL			-- cents
) WITH (fillfactor = 50);

CREATE TABLE emails (
	id integer PRIMARY KEY,
	wallet_id integer NOT NULL			-- who pays for it
);

CREATE TABLE charges (
	email_id integer NOT NULL,
	wallet_id integer NOT NULL,
	cents integer NOT NULL
);
CREATE INDEX ON charges (email_id);

-- At least once, as queues are: a job is handed out, and handed out again if it
-- is not done by visible_at.
CREATE TABLE queue (
	email_id integer PRIMARY KEY,
	visible_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	deliveries integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What the mail server has sent, which no transaction can take back.
CREATE TABLE mailbox (email_id integer NOT NULL);

-- What the guards have refused.
CREATE TABLE stale_writes (email_id integer NOT NULL, sqlstate text NOT NULL);

-- As many e-mails for each wallet, in an order that only the seed decides.
INSERT INTO wallets
SELECT id, :cents FROM generate_series(1, :wallets) AS id;

INSERT INTO emails
SELECT row_number() OVER (ORDER BY md5(:seed || ' ' || n)), 1 + n % :wallets
FROM generate_series(1, :emails) AS n;

INSERT INTO queue (email_id)
SELECT id FROM emails ORDER BY id;

VACUUM ANALYZE;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO demo_app;
