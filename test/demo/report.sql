-- report.sql: what came out of one mode, as one row of numbers for `run`.
-- Variable: cents (that each wallet had).

WITH paid AS (
	SELECT email_id, count(*) AS times FROM charges GROUP BY email_id
), sent AS (
	SELECT email_id, count(*) AS times FROM mailbox GROUP BY email_id
), wallet AS (
	SELECT balance, coalesce(sum(cents), 0) AS charged
	FROM wallets LEFT JOIN charges ON wallet_id = id
	GROUP BY id
)
SELECT
	(SELECT count(*) FROM paid WHERE times > 1) AS charged_twice,
	(SELECT count(*) FROM wallet WHERE balance < 0) AS below_zero,
	(SELECT count(*) FROM stale_writes) AS stale_writes,
	(SELECT count(*) FROM sent WHERE times > 1) AS sent_twice,
	(SELECT sum(charged) FROM wallet) AS charged,
	-- wallets that do not tally with their charges, or were not emptied to the cent
	(SELECT count(*) FROM wallet WHERE balance <> :cents - charged) AS wrong_sum,
	(SELECT count(*) FROM wallet WHERE charged <> :cents) AS not_exact;
