# Random writes to a guarded table, by clients whose leases run out: whatever
# they do, what is committed was written under the key's current token.
#
# random_writes.c plays the clients and judges each answer by what the open
# transaction has pinned.  What only the whole history shows is judged here,
# from two logs that are written in the transactions they tell of: the grants,
# each with the snapshot that follows it, and the writes, each with the token
# that its writer says it has pinned.  A write is before a grant if the grant's
# snapshot sees it, so no clock and no client is asked.
#
# FENCED_LOCK_SEED= repeats the choice of statements (not of what they meet).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{FENCED_LOCK_SEED} // int(rand(1_000_000_000));
my $statements = 100_000;
my $node = new_node(
	'random_writes', 'fsync = off',
	'log_statement = none', 'log_min_messages = fatal',
	'deadlock_timeout = 20ms');

sub sql { return $node->safe_psql('postgres', $_[0]); }

note "seed $seed";

sql(q{
	CREATE TABLE wallets (id int PRIMARY KEY, balance bigint NOT NULL, fence bigint)
		WITH (fillfactor = 50);
	-- the last one was stamped by somebody whose tokens were above all of ours
	INSERT INTO wallets SELECT id, 1000, CASE id WHEN 21 THEN 1::bigint << 62 END
		FROM generate_series(1, 21) id;

	CREATE SEQUENCE log_order;
	CREATE TABLE grants (n bigint, wallet int, token bigint, xid xid8, seen pg_snapshot);
	CREATE TABLE releases (LIKE grants);
	CREATE TABLE ends (token bigint, expires_at timestamptz);
	CREATE TABLE writes (n bigint, wallet int, op text, said bigint, stamp bigint,
		was_read bigint, before bigint, after bigint, xid xid8, seen pg_snapshot,
		-- when the statement came in, if it is the one that has pinned
		pinned_at timestamptz);

	-- What the client says in the comment before its statement.
	CREATE FUNCTION said(what text) RETURNS bigint LANGUAGE sql AS $$
		SELECT substring(current_query() FROM '^/\*[^*]* ' || what || ':(\d+)')::bigint
	$$;

	CREATE FUNCTION log_write(wallet int, op text, stamp bigint, was_read bigint, before bigint, after bigint)
	RETURNS void LANGUAGE sql AS $$
		INSERT INTO writes VALUES (nextval('log_order'), wallet, op, said(wallet::text), stamp,
			was_read, before, after, pg_current_xact_id(), pg_current_snapshot(),
			CASE said('pins') WHEN wallet THEN statement_timestamp() END)
	$$;

	-- A changed key is a row that goes and one that comes.
	CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF TG_OP = 'DELETE' THEN
			PERFORM log_write(OLD.id, TG_OP, NULL, NULL, OLD.balance, NULL);
		ELSIF TG_OP = 'INSERT' THEN
			PERFORM log_write(NEW.id, TG_OP, NEW.fence, NULL, NULL, NEW.balance);
		ELSIF OLD.id <> NEW.id THEN
			PERFORM log_write(OLD.id, TG_OP, NULL, NULL, OLD.balance, NULL);
			PERFORM log_write(NEW.id, TG_OP, NEW.fence, NULL, NULL, NEW.balance);
		ELSE
			PERFORM log_write(NEW.id, TG_OP, NEW.fence, said('read'), OLD.balance, NEW.balance);
		END IF;
		RETURN NULL;
	END $$;

	CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
	CREATE TRIGGER zz_log AFTER INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION log_write();

	-- Here each statement has a snapshot of its own, which is younger than what
	-- the one before it has done; not so from REPEATABLE READ on.
	CREATE FUNCTION take(wallet int, ttl interval, owner uuid, wait interval)
	RETURNS fenced_lock.lease LANGUAGE plpgsql AS $$
	DECLARE
		lease fenced_lock.lease;
	BEGIN
		lease := fenced_lock.try_acquire('wallet:' || wallet, ttl, owner, wait => wait);
		IF lease.acquired THEN
			INSERT INTO ends VALUES (lease.fencing_token, lease.expires_at);
		END IF;
		IF lease.acquired AND NOT lease.already_held THEN
			INSERT INTO grants VALUES (nextval('log_order'), wallet, lease.fencing_token,
				pg_current_xact_id(), pg_current_snapshot());
		END IF;
		RETURN lease;
	END $$;

	CREATE FUNCTION keep(wallet int, owner uuid, ttl interval) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		renewed_to timestamptz := fenced_lock.renew('wallet:' || wallet, owner, ttl);
	BEGIN
		INSERT INTO ends SELECT fencing_token, expires_at FROM fenced_lock.lock_row
		 WHERE key = 'wallet:' || wallet AND expires_at = renewed_to;
		RETURN renewed_to IS NOT NULL;
	END $$;

	-- True may also mean that a lease had ended anyway: that is not logged.
	CREATE FUNCTION give_back(wallet int, owner uuid) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		IF NOT fenced_lock.release('wallet:' || wallet, owner) THEN
			RETURN false;
		END IF;
		INSERT INTO releases
		SELECT nextval('log_order'), wallet, fencing_token, pg_current_xact_id(),
		       CASE current_setting('transaction_isolation') WHEN 'read committed' THEN pg_current_snapshot() END
		  FROM fenced_lock.lock_row WHERE key = 'wallet:' || wallet AND owner_digest IS NULL;
		RETURN true;
	END $$;

	-- Rows written, or the SQLSTATE of an error that is swallowed.
	CREATE FUNCTION tried(statement text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		rows bigint;
	BEGIN
		EXECUTE statement;
		GET DIAGNOSTICS rows = ROW_COUNT;
		RETURN rows;
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END $$;

	-- A pin that goes with its block.
	CREATE FUNCTION pin_and_fail(wallet int, token bigint) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM fenced_lock.pin('wallet:' || wallet, token);
		RAISE 'never mind';
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END $$;
});

my $program = $node->basedir . '/random_writes';
my ($include, $lib) =
  map { my $dir = `pg_config --$_`; chomp $dir; $dir } 'includedir', 'libdir';
system_or_bail(
	'gcc', '-std=c99', '-D_GNU_SOURCE', '-O2', '-Wall', '-Wextra', '-Werror',
	"-I$include", '-o', $program, "$FindBin::RealBin/random_writes.c",
	"-L$lib", '-lpq', '-pthread');

local %ENV = (
	%ENV,
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres');
my ($out, $err);
my $ended = IPC::Run::run([ $program, $seed, $statements ],
	'>', \$out, '2>', \$err,
	IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
my %count = split /\s/, $out;
ok($ended, 'the clients came to their end');
is($err, '', 'each answer was what the transaction\'s own pins allow');
cmp_ok($count{statements}, '>=', $statements, 'so many statements wrote or tried to');

# What the logs show to be wrong; each query counts it.
sql('CREATE INDEX ON grants (wallet, token); CREATE INDEX ON ends (token); ANALYZE');
foreach my $check (
	[
		'every write that was committed came with a pin',
		'FROM writes WHERE said IS NULL'
	],
	[
		'its token had been granted for this key, and nobody else\'s is the stamp',
		'FROM writes w LEFT JOIN grants g ON g.wallet = w.wallet AND g.token = w.said
		 WHERE g.token IS NULL OR w.stamp <> w.said OR (w.op <> \'DELETE\' AND w.after IS NOT NULL AND w.stamp IS NULL)
		    OR NOT CASE WHEN g.xid = w.xid THEN g.n < w.n ELSE pg_visible_in_snapshot(g.xid, w.seen) END'
	],
	[
		'none was committed after a newer grant of its key',
		'FROM writes w JOIN LATERAL
		      (SELECT * FROM grants WHERE wallet = w.wallet AND token > w.said ORDER BY token LIMIT 1) g ON true
		 WHERE NOT CASE WHEN g.xid = w.xid THEN w.n < g.n ELSE pg_visible_in_snapshot(w.xid, g.seen) END'
	],
	[
		'none was committed after its own lease was released',
		'FROM writes w JOIN releases r ON r.wallet = w.wallet AND r.token = w.said
		 WHERE NOT CASE WHEN r.xid = w.xid THEN w.n < r.n ELSE pg_visible_in_snapshot(w.xid, r.seen) END'
	],
	[
		'none has pinned after the end of its lease',
		'FROM writes w WHERE pinned_at > (SELECT max(expires_at) FROM ends WHERE token = w.said)'
	],
	[
		'tokens of a key rise in the order of its grants',
		'FROM (SELECT *, lag(xid) OVER key AS last_xid, lag(n) OVER key AS last_n
		         FROM grants WINDOW key AS (PARTITION BY wallet ORDER BY token)) g
		 WHERE NOT CASE WHEN xid = last_xid THEN last_n < n ELSE pg_visible_in_snapshot(last_xid, seen) END'
	],
	[
		'the stamp never goes down for a key',
		'FROM (SELECT stamp, max(stamp) OVER (PARTITION BY wallet ORDER BY n
		              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest FROM writes) w
		 WHERE stamp < highest'
	],
	[
		'each write of a key found what the one before it has left',
		'FROM (SELECT before, lag(after, 1, 1000::bigint) OVER (PARTITION BY wallet ORDER BY n) AS left_by_last FROM writes) w
		 WHERE before IS DISTINCT FROM left_by_last'
	],
	[
		'what a holder read was still true when it wrote',
		'FROM writes WHERE was_read <> before'
	],
	[
		'a stamp from elsewhere was not overwritten',
		'FROM (SELECT FROM writes WHERE wallet = 21 UNION ALL
		       SELECT FROM (VALUES (0)) v HAVING (SELECT balance FROM wallets WHERE id = 21) IS DISTINCT FROM 1000) w'
	])
{
	my ($what, $query) = @$check;
	is(sql("SELECT count(*) $query"), 0, $what);
}
is( sql('SELECT sum(balance) FROM wallets'),
	21_000 + $count{delta},
	'the sum of all wallets is what the clients have counted');

# Has there been anything to see?
(   $count{committed_writes}, $count{reads_checked}, $count{ends_checked},
	$count{grants}, $count{takeovers}) = split /\|/, sql(
	'SELECT (SELECT count(*) FROM writes),
	        (SELECT count(was_read) FROM writes),
	        (SELECT count(pinned_at) FROM writes),
	        count(*),
	        count(*) FILTER (WHERE last IS NOT NULL AND last NOT IN (SELECT token FROM releases))
	   FROM (SELECT lag(token) OVER (PARTITION BY wallet ORDER BY token) AS last FROM grants) g');
note "seed $seed: ", join ', ', map { "$_ $count{$_}" } sort keys %count;
foreach my $what (
	'grants', 'takeovers', 'renewals', 'releases', 'rollbacks',
	'committed_writes', 'reads_checked', 'ends_checked', 'LF001', 'LF002', 'LF101', 'LF102',
	'40001', 'old_snapshots', '23505')
{
	cmp_ok($count{$what}, '>', 0, "there were: $what");
}

$node->stop;
done_testing();
