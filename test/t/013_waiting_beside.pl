# Waiting beside other work of the server: settings that change, maintenance,
# prepared transactions, DROP EXTENSION.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('waiting_beside', 'fsync = off', 'max_prepared_transactions = 10');
my $at_once = 6;    # seconds, on a slow machine
my $keys = 0;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub new_key { return 'key ' . ++$keys; }

sub becomes_true
{
	my ($sql, $what) = @_;
	$node->poll_query_until('postgres', $sql) or die "in vain: $what";
	return;
}

# A statement in the background.
sub start_sql
{
	my ($sql, $db) = @_;
	my ($out, $err) = ('', '');

	return {
		out => \$out,
		err => \$err,
		handle => IPC::Run::start(
			[ 'psql', '-XAtq', '-h', $node->host, '-p', $node->port,
				'-v', 'VERBOSITY=verbose', '-c', $sql, $db // 'postgres' ],
			'<', \undef, '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
	};
}

#
# Settings that change
#

# The head and a follower go on, and what was set holds from then on.
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '10 min');
	my $call = "SELECT acquired, expires_at - clock_timestamp() > '9 min', fenced_lock.release('$key', owner_token)
	              FROM fenced_lock.acquire('$key', '10 min', wait => '60 s');
	            SHOW fenced_lock.max_ttl; SELECT fenced_lock.acquire('$key', '10 min')";
	my @line = map { start_waiter($node, $call, key => $key, place => $_) } 1, 2;
	my $position = log_position($node);

	$node->append_conf('postgresql.conf', "fenced_lock.max_ttl = 5min");
	$node->reload;
	becomes_true("SELECT current_setting('fenced_lock.max_ttl', true) = '5min'", 'reload');
	is(sql("SELECT count(*) FROM fenced_lock.waiters WHERE key = '$key'"), '2',
		'a reload of the configuration: the waits go on');
	sql("SELECT fenced_lock.release('$key', '$owner')");
	foreach (@line)
	{
		cmp_ok(seconds_to_end($_), '<', $at_once, 'a reload of the configuration: woken as ever');
		is(${ $_->{out} }, "t|t|t\n5min\n", 'a reload of the configuration: granted, and the new settings hold after');
		like(${ $_->{err} }, qr/ttl/, 'a reload of the configuration: the new limit is kept to');
	}
	$node->append_conf('postgresql.conf', "fenced_lock.max_ttl = 1h");
	$node->reload;
	becomes_true("SELECT current_setting('fenced_lock.max_ttl', true) = '1h'", 'reload');
}

# Below 17 there is no transaction_timeout.
if ($node->pg_version >= 17)
{
	foreach my $place (1, 2)
	{
		my $who = $place == 1 ? 'the head' : 'a follower';
		my $key = new_key();
		my ($token, $owner) = acquire($node, $key, '1 h');
		my $head;

		$head = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')", key => $key)
		  if $place == 2;
		my $waiter = start_waiter($node,
			"SET transaction_timeout = '2 s'; SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')",
			key => $key, place => $place);
		cmp_ok(seconds_to_end($waiter), '<', $at_once, "$who: transaction_timeout ends the wait");
		is(${ $waiter->{out} }, '', "$who, transaction_timeout: nothing granted");
		like(${ $waiter->{err} }, qr/due to transaction timeout/, "$who, transaction_timeout: says so");
		sql("SELECT fenced_lock.release('$key', '$owner')");
		is($head ? (seconds_to_end($head), ${ $head->{out} })[1] : sql("SELECT acquired FROM fenced_lock.acquire('$key')") . "\n",
			"t\n", "$who, transaction_timeout: the next one is granted");
	}
}

#
# Maintenance while somebody waits, by the holder
#

{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	sql('CREATE TABLE work AS SELECT generate_series(1, 1000) AS n; CREATE INDEX work_n ON work (n)');
	my $call = "SELECT acquired FROM fenced_lock.try_acquire('$key', wait => '5 min')";
	my @builds = ('CREATE INDEX CONCURRENTLY work_again ON work (n)',
		'REINDEX INDEX CONCURRENTLY work_n', 'VACUUM work');

	foreach my $build (@builds)
	{
		my ($what) = $build =~ /^(VACUUM|\w+ INDEX CONCURRENTLY)/;
		my @line = map { start_waiter($node, $call, key => $key, place => $_) } 1, 2;

		my $building = start_sql($build);

		if ($what eq 'VACUUM')
		{
			cmp_ok(seconds_to_end($building), '<', 30, "$what: does not wait for those who wait");
		}
		else
		{
			becomes_true("SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'virtualxid' AND NOT granted",
				"$what waits for a waiter");
			is(sql("SELECT count(*) FROM fenced_lock.waiters WHERE key = '$key'"), '2', "$what: the waits go on");

			# The deadlock detectors of all have had their look.
			becomes_true("SELECT bool_and(now() - coalesce(waitstart, now()) > '3 s') FROM pg_locks
				WHERE locktype = 'virtualxid' AND NOT granted", "$what waits on");
		}
		sql("SELECT pg_cancel_backend(pid) FROM fenced_lock.waiters WHERE key = '$key'");
		seconds_to_end($_) foreach @line;
		cmp_ok(seconds_to_end($building), '<', 30, "$what: ends when the waits do") if $what ne 'VACUUM';
		is(${ $building->{err} }, '', "$what: no error");
		like(${ $_->{err} }, qr/canceling statement due to user request/, "$what: no deadlock for a waiter") foreach @line;
	}
	is(sql("SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'work'::regclass"), 't', 'both indexes are valid');
	ok(sql("SELECT fenced_lock.release('$key', '$owner')") eq 't', 'the holder still holds the key');
}

#
# A release that is prepared
#

{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my $head = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')", key => $key);

	is(sql("SELECT blocked_by FROM fenced_lock.waiters WHERE pid = $head->{pid}"), '{}', 'PREPARE: before it the head sleeps');
	sql("BEGIN; SELECT fenced_lock.release('$key', '$owner'); PREPARE TRANSACTION 'release'");
	becomes_true("SELECT count(*) = 1 FROM pg_locks WHERE pid = $head->{pid} AND objsubid = 17996 AND NOT granted",
		'the head waits for the prepared transaction');
	is(sql("SELECT blocked_by FROM fenced_lock.waiters WHERE pid = $head->{pid}"), '{0}',
		'PREPARE: the head waits for a prepared transaction');
	is(sql("SELECT pid IS NULL FROM pg_locks WHERE objsubid = 17996 AND granted"), 't', 'PREPARE: which has the key locked');
	sql("COMMIT PREPARED 'release'");
	cmp_ok(seconds_to_end($head), '<', $at_once, 'COMMIT PREPARED from another session wakes the head');
	is(${ $head->{out} }, "t\n", 'COMMIT PREPARED: granted');
}

#
# The extension is dropped
#

{
	my $key = new_key();
	acquire($node, $key, '1 h');
	my $call = "SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')";
	my @line = map { start_waiter($node, "\\set VERBOSITY verbose\n$call", key => $key, place => $_) } 1, 2;
	my $dropper = $node->background_psql('postgres');

	# A first call in its session, too late: it has looked the names up.  (Not
	# in FROM: there PostgreSQL itself opens the type of the result first, and
	# fails with a message of its own.)
	$dropper->query_safe('BEGIN');
	$dropper->query_safe('DROP EXTENSION fenced_lock');
	my $newcomer = start_sql("SELECT fenced_lock.acquire('$key', wait => '60 s')");
	becomes_true("SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND l.locktype = 'relation' AND a.application_name <> 'waiter')", 'the newcomer waits for the drop');
	$dropper->query_safe('CREATE EXTENSION fenced_lock');
	$dropper->query_safe('COMMIT');
	close_session($dropper);
	foreach ([ 'the head', $line[0] ], [ 'a follower', $line[1] ], [ 'a newcomer', $newcomer ])
	{
		my ($who, $session) = @$_;
		cmp_ok(seconds_to_end($session), '<', $at_once, "DROP EXTENSION ends the call of $who");
		like(${ $session->{err} }, qr/ERROR:  42P01: (?:table|relation) "fenced_lock\.\w+" (?:was dropped meanwhile|does not exist)/,
			"DROP EXTENSION: $who is told so");
	}
	is(sql("SELECT acquired FROM fenced_lock.try_acquire('$key')"), 't', 'the new extension works');
}

is(sql('SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 17996 AND 17998'), '0', 'no lock is left of all that');
$node->stop;
done_testing();
