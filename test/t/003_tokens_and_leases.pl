# Many clients, few keys: tokens rise in the order of grants, and no two leases
# of a key overlap, whether they end by release, by expiry or by rollback.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('leases', 'fsync = off', 'log_statement = none');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Each client keeps a log of its grants, written when they are over. A lease
# was certainly held until just before its release was called, or until it
# expired, or until just before its transaction was rolled back.
sql(q{
	CREATE TYPE fate AS ENUM ('released', 'expired', 'rolled back');
	CREATE TABLE journal (
		worker int, key text, token bigint, fate fate,
		held_from timestamptz, held_until timestamptz);
	CREATE TABLE refusals (worker int, key text, count int);

	CREATE PROCEDURE work(worker int, grants int, key_prefix text, keys int)
	LANGUAGE plpgsql AS $$
	DECLARE
		lease fenced_lock.lease;
		key text;
		ttl interval;
		fate fate;
		held_until timestamptz;
		refused int := 0;
	BEGIN
		WHILE grants > 0 LOOP
			key := key_prefix || floor(random() * keys);
			fate := CASE WHEN random() < 0.05 THEN 'expired'
						 WHEN random() < 0.10 THEN 'rolled back'
						 ELSE 'released' END;
			ttl := CASE fate WHEN 'expired' THEN '3 ms' ELSE '1 min' END;
			lease := fenced_lock.try_acquire(key, ttl);
			IF NOT lease.acquired THEN
				COMMIT;
				refused := refused + 1;
				CONTINUE;
			END IF;

			IF fate = 'rolled back' THEN
				held_until := clock_timestamp();
				ROLLBACK;
			ELSE
				COMMIT;
			END IF;

			IF fate = 'expired' THEN
				held_until := lease.expires_at;
			ELSIF fate = 'released' THEN
				held_until := clock_timestamp();
				IF NOT fenced_lock.release(key, lease.owner_token) THEN
					RAISE EXCEPTION 'a lease of a minute was lost';
				END IF;
				COMMIT;
			END IF;

			INSERT INTO journal VALUES (worker, key, lease.fencing_token, fate,
				lease.expires_at - ttl, held_until);
			COMMIT;
			grants := grants - 1;
		END LOOP;
		INSERT INTO refusals VALUES (worker, key_prefix, refused);
	END $$;
});

# What is wrong with the log of the keys with a prefix.
sub inversions
{
	my ($prefix) = @_;
	return sql(
		"SELECT count(*)
		   FROM (SELECT token,
		                lag(token) OVER (PARTITION BY key
		                                 ORDER BY held_from, token) AS before
		           FROM journal WHERE key ^@ '$prefix') j
		  WHERE token <= before");
}

sub overlaps
{
	my ($prefix) = @_;
	return sql(
		"SELECT count(*)
		   FROM (SELECT held_from,
		                lag(held_until) OVER (PARTITION BY key
		                                      ORDER BY token) AS before
		           FROM journal WHERE key ^@ '$prefix') j
		  WHERE held_from < before");
}

# Sixteen clients on three keys.

my ($clients, $grants) = (16, 1250);
my $bench = start_pgbench(
	$node, "CALL work(:client_id, $grants, 'busy ', 3);",
	'-c', $clients, '-j', 2, '-t', 1);
ok($bench->finish, "$clients clients at work on three keys");

is( sql("SELECT count(*), count(DISTINCT key), count(DISTINCT worker)
		   FROM journal WHERE key ^@ 'busy '"),
	$clients * $grants . "|3|$clients",
	'20,000 grants of three keys to sixteen clients');
foreach my $fate ('released', 'expired', 'rolled back')
{
	cmp_ok(
		sql("SELECT count(*) FROM journal
		      WHERE key ^@ 'busy ' AND fate = '$fate'"),
		'>', 100, "some leases were $fate");
}
cmp_ok(sql('SELECT sum(count) FROM refusals'),
	'>', 1000, 'there was contention');
is(sql('SELECT count(*) - count(DISTINCT token) FROM journal'),
	'0', 'no token was issued twice');
is(inversions('busy '), '0',
	'tokens of a key rise in the order of grants, rollbacks included');
is(overlaps('busy '), '0', 'no two leases of a key overlap');
is(sql("SELECT count(*) FROM fenced_lock.lock_row WHERE key ^@ 'busy '"),
	'3', 'each key has one row');

# A new key whose first holder rolls back while fifteen others try.

my $token = 0;
foreach my $round (1 .. 5)
{
	my $first = $node->background_psql('postgres');
	$first->query_safe('BEGIN');
	$token = $first->query_safe(
		"SELECT fencing_token FROM fenced_lock.try_acquire('new $round 0')");
	$bench = start_pgbench(
		$node, "CALL work(:client_id, 20, 'new $round ', 1);",
		'-c', 15, '-j', 2, '-t', 1);
	$node->poll_query_until(
		'postgres', "SELECT count(*) = 15 FROM pg_stat_activity
		              WHERE query LIKE 'CALL work(%' AND state = 'active'")
	  or die 'the clients did not start';
	is(sql("SELECT count(*) FROM journal WHERE key ^@ 'new $round '"),
		'0', "new key $round: nobody is granted it while its grant is open");
	$first->query_safe('ROLLBACK');
	ok($bench->finish, "new key $round: after the rollback all get it");
	close_session($first);

	is( sql("SELECT count(DISTINCT worker) || '|' || count(*)
			   FROM journal WHERE key ^@ 'new $round '"),
		'15|300',
		"new key $round: after the rollback all were granted it in turn");
	cmp_ok(
		sql("SELECT min(token) FROM journal WHERE key ^@ 'new $round '"),
		'>', $token,
		"new key $round: their tokens are above the one that was rolled back");
	is(inversions("new $round "), '0', "new key $round: their tokens rise");
	is(overlaps("new $round "), '0', "new key $round: no two leases overlap");
	is( sql("SELECT count(*) FROM fenced_lock.lock_row
			  WHERE key = 'new $round 0'"),
		'1', "new key $round: there is one row");
}

is( sql("SELECT data_type, cache_size, cycle FROM pg_sequences
		  WHERE schemaname = 'fenced_lock' AND sequencename = 'token_seq'"),
	'bigint|1|f',
	'the token sequence is bigint, without cache, and does not cycle');

$node->stop;
done_testing();
