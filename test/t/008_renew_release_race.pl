# Renewals against a release of the same grant, and against pins: a renewal
# never brings a released lease back, and never makes a holder look lost.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('race', 'fsync = off', 'log_statement = none');
my $rounds = 10_000;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Two clients meet before each round: sequences tell each where the other is,
# outside of all transactions.
sql(q{
	CREATE SEQUENCE renewer;
	CREATE SEQUENCE releaser;
	CREATE TABLE journal (
		who text, round int, called_at timestamptz, done_at timestamptz,
		answer boolean, again boolean, PRIMARY KEY (who, round));

	CREATE PROCEDURE grant_all(rounds int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR round IN 1 .. rounds LOOP
			PERFORM fenced_lock.try_acquire('round ' || round, '1 h',
				md5(round::text)::uuid);
			COMMIT;
		END LOOP;
	END $$;

	CREATE PROCEDURE meet(me regclass, other regclass, round int)
	LANGUAGE plpgsql AS $$
	DECLARE
		there bigint;
		looks int := 0;
	BEGIN
		PERFORM nextval(me);
		LOOP
			EXECUTE format('SELECT last_value FROM %s', other) INTO there;
			EXIT WHEN there >= round;
			looks := looks + 1;
			IF looks > 100 THEN
				PERFORM pg_sleep(0.0001);
			END IF;
			IF looks > 20000 THEN
				RAISE EXCEPTION '% does not come to round %', other, round;
			END IF;
		END LOOP;
		-- neither shall always be the first
		PERFORM count(*) FROM generate_series(1, (random() * 300)::int);
	END $$;

	CREATE PROCEDURE renew_all(rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		key text;
		owner uuid;
		called_at timestamptz;
		done_at timestamptz;
		answer boolean;
		again boolean;
	BEGIN
		FOR round IN 1 .. rounds LOOP
			key := 'round ' || round;
			owner := md5(round::text)::uuid;
			CALL meet('renewer', 'releaser', round);
			COMMIT;

			called_at := clock_timestamp();
			answer := fenced_lock.renew(key, owner) IS NOT NULL;
			COMMIT;
			done_at := clock_timestamp();

			again := fenced_lock.renew(key, owner) IS NOT NULL;
			COMMIT;
			INSERT INTO journal VALUES ('renewer', round, called_at, done_at,
				answer, again);
		END LOOP;
	END $$;

	CREATE PROCEDURE release_all(rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		key text;
		owner uuid;
		called_at timestamptz;
		done_at timestamptz;
		answer boolean;
		again boolean;
	BEGIN
		FOR round IN 1 .. rounds LOOP
			key := 'round ' || round;
			owner := md5(round::text)::uuid;
			CALL meet('releaser', 'renewer', round);
			COMMIT;

			called_at := clock_timestamp();
			answer := fenced_lock.release(key, owner);
			COMMIT;
			done_at := clock_timestamp();

			again := fenced_lock.renew(key, owner) IS NOT NULL;
			COMMIT;
			INSERT INTO journal VALUES ('releaser', round, called_at, done_at,
				answer, again);
		END LOOP;
	END $$;
});

sql("CALL grant_all($rounds)");
my @clients = map { start_pgbench($node, "CALL $_($rounds);", '-t', 1) }
  'renew_all', 'release_all';
is(scalar(grep { $_->finish } @clients),
	2, "a renewer and a releaser met for $rounds grants");

# The renewal was called when the release was under way, or the reverse.
my ($overlapping, $granted, $lost) = split /\|/, sql(
	"SELECT count(*) FILTER (WHERE n.called_at < r.done_at
	                           AND r.called_at < n.done_at),
	        count(*) FILTER (WHERE n.answer),
	        count(*) FILTER (WHERE NOT n.answer)
	   FROM journal n JOIN journal r USING (round)
	  WHERE n.who = 'renewer' AND r.who = 'releaser'");
note "$overlapping calls overlapped; $granted renewals granted, $lost lost";
cmp_ok($overlapping, '>', $rounds / 100, 'many of the calls overlapped');
cmp_ok($granted, '>', $rounds / 100, 'some renewals came first');
cmp_ok($lost, '>', $rounds / 100, 'some releases came first');

is(sql("SELECT count(*) FROM journal WHERE who = 'releaser' AND answer"),
	$rounds, 'every release was true, whatever the renewal did');
is( sql("SELECT count(*) FROM journal WHERE who = 'releaser' AND again"),
	'0', 'after a true release its owner cannot renew');
is( sql("SELECT count(*)
		   FROM journal n JOIN journal r USING (round)
		  WHERE n.who = 'renewer' AND r.who = 'releaser'
		    AND n.answer AND n.called_at > r.done_at"),
	'0',
	'no renewal that was called after a true release was granted');
is( sql("SELECT count(*)
		   FROM journal n JOIN journal r USING (round)
		  WHERE n.who = 'renewer' AND r.who = 'releaser'
		    AND NOT n.answer AND n.done_at < r.called_at"),
	'0',
	'no renewal failed before its release was called');
is( sql("SELECT count(*) FROM journal
		  WHERE who = 'renewer' AND NOT answer AND again"),
	'0',
	'after a failed renewal none is granted: the lease was lost');
is( sql("SELECT count(*) FROM fenced_lock.lock_row
		  WHERE key ^@ 'round ' AND owner_digest IS NULL
		    AND expires_at < clock_timestamp()"),
	$rounds,
	'all leases are over in the end');

# Renewals that move the row to another page, against pins of its token.  The
# row is so wide that four fill a page, and a snapshot that is older than all
# keeps each of them there.

my $snapshot = $node->background_psql('postgres');
$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$snapshot->query_safe('SELECT 1');
my ($token, $owner) = split /\|/, sql(
	"SELECT fencing_token, owner_token
	   FROM fenced_lock.try_acquire('moving', '1 h', NULL,
	        (SELECT to_jsonb(string_agg(md5(i::text), ''))
	           FROM generate_series(1, 54) i))");
sql(qq{
	CREATE TABLE looks (pins int, refused int);

	CREATE PROCEDURE pin_for(how_long interval) LANGUAGE plpgsql AS \$\$
	DECLARE
		until timestamptz := clock_timestamp() + how_long;
		pins int := 0;
		refused int := 0;
	BEGIN
		WHILE clock_timestamp() < until LOOP
			BEGIN
				PERFORM fenced_lock.pin('moving', $token);
			EXCEPTION WHEN OTHERS THEN
				RAISE LOG 'refused: %', SQLERRM;
				refused := refused + 1;
			END;
			COMMIT;
			pins := pins + 1;
		END LOOP;
		INSERT INTO looks VALUES (pins, refused);
	END \$\$;

	CREATE PROCEDURE renew_for(how_long interval) LANGUAGE plpgsql AS \$\$
	DECLARE
		until timestamptz := clock_timestamp() + how_long;
	BEGIN
		WHILE clock_timestamp() < until LOOP
			IF fenced_lock.renew('moving', '$owner') IS NULL THEN
				RAISE EXCEPTION 'a renewal was refused';
			END IF;
			COMMIT;
		END LOOP;
	END \$\$;
});
my $place = sql("SELECT ctid FROM fenced_lock.lock_row WHERE key = 'moving'");
@clients = (
	start_pgbench($node, "CALL renew_for('8 s');", '-t', 1),
	start_pgbench($node, "CALL pin_for('8 s');", '-t', 1, '-c', 3, '-j', 1));
is(scalar(grep { $_->finish } @clients), 2, 'renewals and pins side by side');

my ($moves) = sql(
	"SELECT split_part(trim('(' FROM ctid::text), ',', 1)::int
	        - split_part(trim('(' FROM '$place'), ',', 1)::int
	   FROM fenced_lock.lock_row WHERE key = 'moving'");
my ($pins, $refused) =
  split /\|/, sql('SELECT sum(pins), sum(refused) FROM looks');
note "$pins pins while the row moved through $moves pages";
cmp_ok($moves, '>', 500, 'renewals moved the row from page to page');
cmp_ok($pins, '>', 10_000, 'many thousand pins meanwhile');
is($refused, 0, 'a pin of the current token is never refused');
close_session($snapshot);

$node->stop;
done_testing();
