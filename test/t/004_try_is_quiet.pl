# A try that is refused costs nothing and breaks nothing: it does not wait for
# anybody, assigns no transaction id, writes no WAL, keeps no lock, logs no
# error, and the caller's transaction goes on.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('quiet', 'fsync = off');
my $log_start = log_position($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

my @open;

# A session that leaves a transaction open, to be in somebody's way.
sub leave_open
{
	my (@statements) = @_;
	my $session = $node->background_psql('postgres');

	$session->query_safe($_) foreach 'BEGIN', @statements;
	push @open, $session;
	return;
}

# Milliseconds that a call takes at best of five, and its answer. A call that
# waits for one of the transactions above is cut off: nothing ends those.
sub best_ms
{
	my ($call) = @_;
	my ($best, $answer);

	foreach my $attempt (1 .. 5)
	{
		my ($ret, $out, $err) = $node->psql(
			'postgres', "SET statement_timeout = '6 s';
			SELECT extract(epoch FROM clock_timestamp() - before) * 1000, answer
			  FROM (SELECT clock_timestamp() AS before, $call AS answer
			        OFFSET 0) t");

		return (6000, "error: $err") if $ret != 0;
		(my $ms, $answer) = split /\|/, $out, 2;
		$best = $ms if !defined $best || $ms < $best;
	}
	return ($best, $answer);
}

# Nothing shall be left to prune in the catalogs, which WAL would tell of.
sql('VACUUM');

# What may be in the way.

acquire($node, 'held', '1 h');
my ($renewed_token, $renewed_owner) = acquire($node, 'being renewed', '1 h');
my ($given_token, $given_owner) = acquire($node, 'being released', '1 h');
my ($forced_token, $forced_owner) = acquire($node, 'held and row locked', '1 h');
my ($used_token, $used_owner) = acquire($node, 'used before', '1 h');
sql("SELECT fenced_lock.release('used before', '$used_owner')");
acquire($node, $_, '1 ms') foreach 'row locked', 'row updated';

# The pin must come while the lease lives, so another attempt may be needed.
my $pinner = $node->background_psql('postgres', on_error_stop => 0);
push @open, $pinner;
foreach my $ttl (1, 10, 100)
{
	my ($token) = acquire($node, "pinned $ttl", "$ttl s");
	$pinner->query('BEGIN');
	last
	  if $pinner->query(
		"SET LOCAL fenced_lock.pin_idle_timeout = off;
		 SELECT '$ttl' FROM fenced_lock.pin('pinned $ttl', $token)") eq $ttl;
	$pinner->query('ROLLBACK');
}
my $pinned = sql(
	"SELECT key FROM fenced_lock.locks
	  WHERE key ^@ 'pinned' AND pinned_by IS NOT NULL");

leave_open("SET LOCAL fenced_lock.pin_idle_timeout = off",
	"SELECT fenced_lock.try_acquire('new', '1 s')");
leave_open("SET LOCAL fenced_lock.pin_idle_timeout = off",
	"SELECT fenced_lock.try_acquire('used before', '1 s')");
leave_open("SELECT fenced_lock.renew('being renewed', '$renewed_owner')");
leave_open("SELECT fenced_lock.release('being released', '$given_owner')");
leave_open(
	"SELECT FROM fenced_lock.lock_row
	  WHERE key IN ('row locked', 'held and row locked') FOR UPDATE");
leave_open(
	"UPDATE fenced_lock.lock_row SET metadata = '1' WHERE key = 'row updated'");
$node->poll_query_until(
	'postgres', "SELECT expires_at < clock_timestamp()
	               FROM fenced_lock.lock_row WHERE key = '$pinned'")
  or die 'a lease did not end';

# [ what is in the way, key, for how long it says to come again ]
my @refusals = (
	[ 'a live lease', 'held', 'left' ],
	[ 'an open renewal', 'being renewed', 'left' ],
	[ 'an open release', 'being released', 'left' ],
	[ 'an open grant of a new key', 'new', 'busy' ],
	[ 'an open grant of a known key', 'used before', 'busy' ],
	[ 'an open pin of an ended lease', $pinned, 'busy' ],
	[ 'a hand that has the row locked', 'row locked', 'busy' ],
	[ 'a hand that has the row updated', 'row updated', 'busy' ],
	[ 'a hand that has the row of a live lease locked', 'held and row locked', 'left' ],
);

foreach my $refusal (@refusals)
{
	my ($what, $key, $retry) = @$refusal;

	my ($ms, $answer) = best_ms(
		"(SELECT (acquired, retry_after_ms > 100, fencing_token, owner_token,
		          expires_at, already_held, blocked_key)::text
		    FROM fenced_lock.try_acquire('$key'))");
	is($answer, $retry eq 'left' ? '(f,t,,,,,)' : '(f,f,,,,,)',
		"try behind $what: refused, and told when to come again");
	cmp_ok($ms, '<=', 200, "try behind $what: does not wait");

	# The first look at a page may prune it or set hint bits, which can be
	# logged.
	my $tries = "SELECT count(*) AS refused
		  FROM generate_series(1, 1000) i,
		       LATERAL fenced_lock.try_acquire('$key', i * interval '1 s') l
		 WHERE NOT l.acquired \\gset";
	my ($written, $xid, $locks, $refused) = split /\|/, $node->safe_psql(
		'postgres', "
		SET statement_timeout = '6 s';
		$tries
		BEGIN;
		SELECT pg_current_wal_insert_lsn() AS before \\gset
		$tries
		SELECT pg_current_wal_insert_lsn() - :'before'
		       || '|' || (pg_current_xact_id_if_assigned() IS NULL)
		       || '|' || (SELECT count(*) FROM pg_locks
		                   WHERE pid = pg_backend_pid()
		                     AND (locktype = 'advisory'
		                          OR relation = 'fenced_lock.lock_row'::regclass))
		       || '|' || :refused;
		COMMIT;");
	is($refused, 1000, "a thousand tries behind $what: all refused");
	is($written, 0, "a thousand tries behind $what: no WAL");
	is($xid, 'true', "a thousand tries behind $what: no transaction id");
	is($locks, 0, "a thousand tries behind $what: no lock is kept");
}

# Calls of other owners behind an open transaction do not wait either, where
# the answer does not depend on how it ends.

foreach my $key ('being renewed', 'being released', 'row updated', 'new')
{
	my ($ms, $answer) =
	  best_ms("fenced_lock.renew('$key', gen_random_uuid()) IS NULL");
	is($answer, 't', "a stranger's renew of a key $key: lost");
	cmp_ok($ms, '<=', 200, "a stranger's renew of a key $key: does not wait");
	($ms, $answer) = best_ms("fenced_lock.release('$key', gen_random_uuid())");
	is($answer, 'f', "a stranger's release of a key $key: false");
	cmp_ok($ms, '<=', 200, "a stranger's release of a key $key: does not wait");
}

# The holder's own calls wait for the hand, and for nothing else.

my ($ret, $out, $err) = $node->psql(
	'postgres', "SET lock_timeout = '200 ms';
	SELECT fenced_lock.renew('held and row locked', '$forced_owner')");
like($err, qr/canceling statement due to lock timeout/,
	"a holder's renew behind a hand waits, within lock_timeout");

foreach my $session (@open)
{
	$session->query('ROLLBACK');
	close_session($session);
}
is( sql("SELECT fenced_lock.renew('held and row locked', '$forced_owner')
		        IS NOT NULL"),
	't',
	'once the hand has gone the holder renews');

# Losing does not poison the caller's transaction.

sql('CREATE TABLE orders (id int)');
foreach my $isolation ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	# From REPEATABLE READ on there is no acquiring in a transaction block.
	my $try =
	  $isolation eq 'READ COMMITTED'
	  ? "SELECT acquired FROM fenced_lock.try_acquire('held');"
	  : '';
	$out = sql(
		"SET client_min_messages = error;
		TRUNCATE orders;
		BEGIN ISOLATION LEVEL $isolation;
		INSERT INTO orders VALUES (1);
		$try
		INSERT INTO orders VALUES (2);
		SELECT fenced_lock.renew('held', gen_random_uuid()) IS NULL;
		SELECT fenced_lock.release('held', gen_random_uuid());
		INSERT INTO orders VALUES (3);
		COMMIT;
		SELECT count(*) FROM orders");
	is($out, ($try ? "f\n" : '') . "t\nf\n3",
		"$isolation: being refused leaves the transaction whole");
}

# But for the lock timeout above, which was asked for.
my @errors = grep { /ERROR:|FATAL:|PANIC:/ && !/due to lock timeout/ }
  split /\n/, log_since($node, $log_start);
is("@errors", '', 'contention leaves no ERROR line in the log');

$node->stop;
done_testing();
