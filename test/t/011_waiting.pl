# Waiting for a lease that lives: the head of the line sleeps on its latch,
# and is woken by whatever ends the lease or the wait.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_node('waiting', 'fsync = off');
my $at_once = 6;    # seconds, on a slow machine
my $keys = 0;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub new_key { return 'key ' . ++$keys; }

sub locks_left
{
	return sql(
		"SELECT count(*) FROM pg_locks WHERE objsubid IN (17996, 17997)");
}

# What the waiter does after its wait, whatever has ended that.
my $afterwards =
  "SELECT 'again', acquired FROM fenced_lock.acquire('another', '1 ms', wait => '5 s');
   SELECT 'locks', count(*) FROM pg_locks WHERE objsubid IN (17996, 17997) AND pid = pg_backend_pid();
   SELECT 'settings', current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout');";

sub acquire_call
{
	my ($key, $wait) = @_;
	return "SELECT 'granted', acquired, expires_at - clock_timestamp() > '27 s'
	          FROM fenced_lock.acquire('$key', '30 s', wait => '$wait'); $afterwards";
}
my $granted_and_well = "granted|t|t\nagain|t\nlocks|0\nsettings|7s|0\n";
my $refused_and_well = "again|t\nlocks|0\nsettings|7s|0\n";

#
# What wakes it
#

foreach my $how ('release', 'release in a block', 'renewal that shortens')
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	# the lock_timeout is longer than what it takes, and stays as it is
	my $waiter = start_waiter($node,
		"SET lock_timeout = '7 s'; " . acquire_call($key, '60 s'),
		key => $key);
	my $since = time;

	sql($how eq 'release' ? "SELECT fenced_lock.release('$key', '$owner')"
		: $how eq 'release in a block'
		? "BEGIN; SELECT fenced_lock.release('$key', '$owner'); SELECT 1; SELECT pg_sleep(0.1); COMMIT"
		: "SELECT fenced_lock.renew('$key', '$owner', '1 ms')");
	seconds_to_end($waiter);
	my $seconds = time - $since;
	cmp_ok($seconds, '<', $at_once, "a $how wakes the waiter");
	is(${ $waiter->{out} }, $granted_and_well,
		"a $how: granted for the whole ttl, nothing is left, settings are as before");
	is(${ $waiter->{err} }, '', "a $how: no complaint");
}

# The look once a second would find a release too: so, how quickly.  The best
# of several, since a look may come by chance.
{
	my @slow;
	foreach my $try (1 .. 5)
	{
		my $key = new_key();
		my ($token, $owner) = acquire($node, $key, '1 h');
		my $waiter = start_waiter($node,
			"SELECT clock_timestamp() FROM fenced_lock.acquire('$key', wait => '60 s')",
			key => $key);
		my $released = sql(
			"SELECT clock_timestamp() FROM fenced_lock.release('$key', '$owner')");

		seconds_to_end($waiter);
		chomp(my $granted = ${ $waiter->{out} });
		push @slow, $try
		  if sql("SELECT '$granted'::timestamptz - '$released' > '150 ms'") eq 't';
	}
	cmp_ok(scalar(@slow), '<=', 1,
		'the release itself wakes it, not the look once a second');
}

{
	my $key = new_key();
	acquire($node, $key, '2 s');
	my $waiter = start_waiter($node, "SET lock_timeout = '7 s'; " . acquire_call($key, '60 s'), key => $key);
	cmp_ok(seconds_to_end($waiter), '<', 2 + $at_once, 'the end of a lease wakes the waiter');
	is(${ $waiter->{out} }, $granted_and_well, 'the end of a lease: granted');
}

# The holder's backend is killed: its committed lease lives on, its open grant
# does not.
{
	my $key = new_key();
	sql("SELECT fenced_lock.release('$key', owner_token) FROM fenced_lock.try_acquire('$key')");
	my $holder = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $holder->query('SELECT pg_backend_pid()');
	$holder->query("BEGIN; SELECT fenced_lock.try_acquire('$key', '1 h')");
	my $waiter = start_waiter($node, "SET lock_timeout = '7 s'; " . acquire_call($key, '60 s'), key => $key);
	is( sql("SELECT blocked_by FROM fenced_lock.waiters WHERE key = '$key'"),
		"{$pid}", 'view waiters names the open transaction in the way');
	sql("SELECT pg_terminate_backend($pid)");
	cmp_ok(seconds_to_end($waiter), '<', $at_once, "the holder's backend killed: the waiter is woken");
	is(${ $waiter->{out} }, $granted_and_well, "the holder's backend killed: granted");
	close_session($holder);
}

# ROLLBACK of a release changes nothing.
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my $waiter = start_waiter($node,
		"SELECT acquired FROM fenced_lock.try_acquire('$key', wait => '3 s')", key => $key);
	sql("BEGIN; SELECT fenced_lock.release('$key', '$owner'); SELECT pg_sleep(0.1); ROLLBACK");
	cmp_ok(seconds_to_end($waiter), '>', 1.5, 'the rollback of a release ends no wait');
	is(${ $waiter->{out} }, "f\n", 'the rollback of a release: refused');
}

#
# What it is while asleep
#

{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my $head = start_waiter($node,
		"BEGIN; SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')", key => $key);
	my $next = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')",
		key => $key, place => 2);

	is( sql("SELECT count(*) FROM pg_locks WHERE pid = $head->{pid}
	          AND (locktype = 'transactionid' OR relation IS NOT NULL OR objsubid = 17996)"),
		'0', 'asleep, the head has no lock on a table, none on the key and no transaction id');
	is( sql("SELECT count(*) FROM pg_stat_activity WHERE pid IN ($head->{pid}, $next->{pid})
	          AND backend_xid IS NOT NULL"),
		'0', 'nobody in line has a transaction id');
	like(
		sql("SELECT wait_event_type || ' ' || wait_event FROM pg_stat_activity WHERE pid = $head->{pid}"),
		$node->pg_version >= 17 ? qr/^Extension FencedLockWait$/ : qr/^Extension Extension$/,
		'the head shows a wait event');
	is( sql("SELECT pid, place, blocked_by, role, application_name, client_address IS NULL,
	                clock_timestamp() - waiting_since BETWEEN '0' AND '60 s'
	           FROM fenced_lock.waiters WHERE key = '$key' ORDER BY place"),
		join("\n",
			"$head->{pid}|1|{}|" . sql('SELECT session_user') . '|waiter|t|t',
			"$next->{pid}|2|{$head->{pid}}|" . sql('SELECT session_user') . '|waiter|t|t'),
		'view waiters shows the line, the head first');
	sql("SELECT fenced_lock.release('$key', '$owner')");
	seconds_to_end($head);
	sql("SELECT pg_terminate_backend($next->{pid})");
	seconds_to_end($next);
}

# One look
{
	my $key = new_key();
	acquire($node, $key, '1 h');
	my ($ret, $out, $err) = $node->psql('postgres',
		"SELECT acquired FROM fenced_lock.try_acquire('$key', wait => '0');
		 SELECT acquired FROM fenced_lock.acquire('$key', wait => '0')");
	is($out, 'f', "wait => '0': try_acquire answers");
	like($err, qr/could not acquire lock on key "$key" within 0 ms/, "wait => '0': acquire fails");
}

#
# An open release behind which the head sleeps already, whose transaction wants
# a row of the waiter's: found at the next look.
#

{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	sql('CREATE TABLE job (done text); INSERT INTO job VALUES (NULL)');
	my $waiter = start_waiter($node,
		"BEGIN; UPDATE job SET done = 'by waiter';
		 SELECT acquired, retry_after_ms FROM fenced_lock.try_acquire('$key', wait => '60 s'); ROLLBACK",
		key => $key);
	my ($ret, $out, $err) = $node->psql('postgres',
		"SET deadlock_timeout = '100 s'; BEGIN; SELECT fenced_lock.release('$key', '$owner'); UPDATE job SET done = 'by holder'; COMMIT");
	cmp_ok(seconds_to_end($waiter), '<', $at_once, 'a deadlock with an open release is found by a head asleep');
	is(${ $waiter->{out} }, "f|100\n", 'a deadlock with an open release: the waiter is refused');
	is($ret, 0, 'a deadlock with an open release: the release goes on');
}

#
# What ends the wait
#

foreach my $place (1, 2)
{
	my $who = $place == 1 ? 'the head' : 'a follower';
	my %ends = (
		'cancel' => sub { sql("SELECT pg_cancel_backend($_[0])") },
		'statement_timeout' => sub { },
		'terminate' => sub { sql("SELECT pg_terminate_backend($_[0])") },
		'a client that is gone' => sub { $_[1]->{handle}->signal('KILL') });
	foreach my $how (sort keys %ends)
	{
		my $key = new_key();
		my ($token, $owner) = acquire($node, $key, '1 h');
		my $head;
		$head = start_waiter($node, acquire_call($key, '60 s'), key => $key) if $place == 2;
		my $set = $how eq 'statement_timeout' ? "SET statement_timeout = '2 s';" : '';
		my $waiter = start_waiter($node, "$set SET client_connection_check_interval = '200 ms'; SET lock_timeout = '7 s';"
			  . acquire_call($key, '6 s'), key => $key, place => $place);
		$ends{$how}->($waiter->{pid}, $waiter);
		my $since = time;
		$node->poll_query_until('postgres',
			"SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = $waiter->{pid} AND objsubid = 17997)");
		cmp_ok(time - $since, '<', 5, "$who, $how: ends the wait");
		eval { seconds_to_end($waiter) };
		is(${ $waiter->{out} },
			$how =~ /cancel|timeout/ ? $refused_and_well : '',
			"$who, $how: nothing granted, nothing left, the session goes on if there is one");
		if ($head)
		{
			sql("SELECT fenced_lock.release('$key', '$owner')");
			seconds_to_end($head);
			like(${ $head->{out} }, qr/^granted\|t\|t/, "$who, $how: the head is granted all the same");
		}
	}
}
is(locks_left(), '0', 'no lock is left of all that');

# Clients that have gone are not granted the key, by whatever they stood behind,
# though PostgreSQL itself has not been told to look for them.
foreach my $behind ('a lease', 'an open transaction')
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my $holder = $node->background_psql('postgres');

	if ($behind eq 'an open transaction')
	{
		$holder->query_safe("BEGIN; SELECT fenced_lock.release('$key', '$owner')");
	}
	my @gone = map { start_waiter($node, acquire_call($key, '60 s'), key => $key, place => $_) } 1, 2;
	my $living = start_waiter($node, "SET lock_timeout = '7 s'; " . acquire_call($key, '6 s'), key => $key, place => 3);
	$_->{handle}->signal('KILL') foreach @gone;
	eval { seconds_to_end($_) } foreach @gone;	# and their sockets are closed
	$holder->query_safe($behind eq 'a lease' ? "SELECT fenced_lock.release('$key', '$owner')" : 'COMMIT');
	seconds_to_end($living);
	is(${ $living->{out} }, $granted_and_well, "gone while they waited for $behind: the next one is granted the key");
	$holder->quit;
}
is(locks_left(), 0, 'no lock is left of clients that have gone');

# A renewal that is written in time and becomes visible after the lease's old
# end keeps its lease: the head, which sees that end pass, must not stand in the
# way of the holder's next renewals and pins.
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '2 s');
	my ($writer, $heartbeat) = map { $node->background_psql('postgres') } 1, 2;
	my $renewal = "SELECT fenced_lock.renew('$key', '$owner', '1 h') IS NOT NULL";

	$writer->query_safe("LOAD 'fenced_lock'; SET fenced_lock.pin_idle_timeout = off; BEGIN; SELECT fenced_lock.pin('$key', $token)");
	is($heartbeat->query_safe("BEGIN; $renewal"), 't', 'a late renewal: written in time');
	my $waiter = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('$key', wait => '100 s')", key => $key);
	$node->poll_query_until('postgres',
		"SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $waiter->{pid} AND objsubid = 17996 AND NOT granted)")
	  or die 'the head does not see the end of the lease';
	$heartbeat->query_safe('COMMIT');
	is(sql("SET lock_timeout = '20 s'; $renewal"), 't', 'a late renewal: the next one does not wait for the head');
	is(sql("SET lock_timeout = '20 s'; SELECT fenced_lock.pin('$key', $token)"), 't', 'a late renewal: nor does a pin');
	$writer->query_safe('COMMIT');
	is(sql("SELECT fenced_lock.release('$key', '$owner')"), 't', 'a late renewal: the holder has kept its lease');
	seconds_to_end($waiter);
	is(${ $waiter->{out} }, "t\n", 'a late renewal: and then the head is granted the key');
	close_session($_) foreach $writer, $heartbeat;
}

# A release that stands in the queue for the key's lock, behind a pin, does not
# keep the head from finding that it waits for the pinning transaction, which
# waits for its own.
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '3 s');
	my ($writer, $releaser) = map { $node->background_psql('postgres') } 1, 2;

	sql('CREATE TABLE wanted (id int); INSERT INTO wanted VALUES (1)');
	$writer->query_safe("SET deadlock_timeout = '100 s'; LOAD 'fenced_lock'; SET fenced_lock.pin_idle_timeout = off; BEGIN; SELECT fenced_lock.pin('$key', $token)");
	my $head = start_waiter($node,
		"SET deadlock_timeout = '200 ms'; BEGIN; UPDATE wanted SET id = 2; SELECT acquired FROM fenced_lock.try_acquire('$key', wait => '100 s'); COMMIT", key => $key);
	$writer->query_until(qr/sent/, "\\echo sent\nUPDATE wanted SET id = 3;\nCOMMIT;\n");
	$releaser->query_until(qr/sent/, "SET deadlock_timeout = '100 s';\n\\echo sent\nSELECT fenced_lock.release('$key', '$owner');\n");
	$node->poll_query_until('postgres',
		"SELECT EXISTS (SELECT FROM pg_locks WHERE objsubid = 17996 AND NOT granted AND mode = 'ExclusiveLock')")
	  or die 'the release does not wait';
	cmp_ok(seconds_to_end($head), '<', 10, 'a queued release: the deadlock is found after the end of the lease');
	is(${ $head->{out} }, "f\n", 'a queued release: and is a refusal');
	close_session($_) foreach $writer, $releaser;
	is(sql('SELECT id FROM wanted'), '3', 'a queued release: the other transaction has gone on');
	sql('DROP TABLE wanted');
}

#
# Order
#

{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my @line = map {
		start_waiter($node,
			"SELECT $_, fencing_token, fenced_lock.release('$key', owner_token) FROM fenced_lock.acquire('$key', wait => '60 s')",
			key => $key, place => $_, hurry => 1)
	} 1 .. 10;

	# The holder's open guarded write is no reason to stall its heartbeat.
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('BEGIN');
	$holder->query_safe("SELECT fenced_lock.pin('$key', $token)");
	my $ms = sql("SELECT min(ms) FROM (SELECT before, fenced_lock.renew('$key', '$owner'),
	                extract(epoch FROM clock_timestamp() - before) * 1000 AS ms
	           FROM (SELECT clock_timestamp() AS before FROM generate_series(1, 5) OFFSET 0) t OFFSET 0) u");
	cmp_ok($ms, '<', 100, 'a renewal beside a pin is quick while ten wait');
	$holder->query_safe('COMMIT');
	close_session($holder);

	sql("SELECT fenced_lock.release('$key', '$owner')");
	seconds_to_end($_) foreach @line;
	is( join(' ', map { $_->[0] } sort { $a->[1] <=> $b->[1] }
			  map { [ split /\|/, ${ $_->{out} } ] } @line),
		'1 2 3 4 5 6 7 8 9 10',
		'ten waiters are served in order of arrival');
}

# A client that acquires and releases without a pause.
{
	my $key = new_key();
	acquire($node, $key, '1 ms');
	my $loop = start_pgbench($node,
		"SELECT fenced_lock.release('$key', owner_token) FROM fenced_lock.acquire('$key', wait => '60 s');\n",
		'-T', 8);
	sleep(1);
	my $ms = sql("SELECT max(ms) FROM (SELECT extract(epoch FROM clock_timestamp() - before) * 1000 AS ms FROM (
			SELECT before, fenced_lock.release('$key', owner_token)
			  FROM (SELECT clock_timestamp() AS before FROM generate_series(1, 20) OFFSET 0) t,
			       LATERAL (SELECT * FROM fenced_lock.acquire('$key', wait => '60 s' + before - before)) l OFFSET 0) u) v");
	cmp_ok($ms, '<', 5000, 'a client that loops does not starve the others');
	$loop->finish;
}

#
# Memory
#

{
	my $key = new_key();
	acquire($node, $key, '1 ms');
	sql(qq{CREATE PROCEDURE cycles(n int) LANGUAGE plpgsql AS \$\$
		DECLARE o uuid;
		BEGIN
			FOR i IN 1 .. n LOOP
				o := owner_token FROM fenced_lock.acquire('$key', wait => '60 s');
				PERFORM fenced_lock.release('$key', o);
				COMMIT;
			END LOOP;
		END \$\$});
	my $total = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts;';
	my ($before, $after) = split /\n/,
	  sql("SET synchronous_commit = off; SET fenced_lock.durable_grants = off; CALL cycles(1000); $total CALL cycles(60000); $total");
	cmp_ok($after - $before, '<', 100_000, '60,000 commits leave the memory where it was');
}

# Each renewal wakes the head, which looks; and many in one transaction are told
# once.
{
	my $key = new_key();
	my ($token, $owner) = acquire($node, $key, '1 h');
	my $waiter = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('$key', wait => '100 s')", key => $key);
	my $resident = sub { return (split ' ', slurp_file("/proc/$_[0]/statm"))[1] * 4096 };
	my $renewals = "SELECT count(acquired) FROM generate_series(1, %d), fenced_lock.try_acquire('$key', '1 h', '$owner');\n";
	my $session = $node->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_safe(sprintf($renewals, 1)) foreach 1 .. 200;
	my ($waiter_before, $before) = map { $resident->($_) } $waiter->{pid}, $pid;
	$session->query_safe(sprintf($renewals, 1)) foreach 1 .. 3000;
	cmp_ok($resident->($waiter->{pid}) - $waiter_before, '<', 600_000, "3,000 looks leave the waiter's memory where it was");
	$session->query_safe('SET synchronous_commit = off');
	$session->query_safe(sprintf($renewals, 20_000));
	cmp_ok($resident->($pid) - $before, '<', 20_000_000, 'many wake-ups of one line at one commit are one');
	close_session($session);
	sql("SELECT fenced_lock.release('$key', '$owner')");
	seconds_to_end($waiter);
}

#
# The end of the database and of the server
#

{
	$node->safe_psql('postgres', 'CREATE DATABASE doomed');
	$node->safe_psql('doomed', 'CREATE EXTENSION fenced_lock');
	acquire($node, 'k', '1 h', 'doomed');
	my $waiter = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('k', wait => '60 s')", key => 'k', db => 'doomed');
	$node->safe_psql('postgres', 'DROP DATABASE doomed WITH (FORCE)');
	cmp_ok(seconds_to_end($waiter), '<', $at_once, 'DROP DATABASE WITH (FORCE) ends the wait');
	is(${ $waiter->{out} }, '', 'DROP DATABASE WITH (FORCE): nothing granted');
}

foreach my $how ('fast shutdown', 'postmaster killed')
{
	my $key = new_key();
	acquire($node, $key, '1 h');
	my $call = "SELECT acquired FROM fenced_lock.acquire('$key', wait => '60 s')";
	my @line = map { start_waiter($node, $call, key => $key, place => $_) } 1, 2;
	my @pids = split /\n/,
	  sql('SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');
	push @pids, split /\n/, (slurp_file($node->data_dir . '/postmaster.pid'))[0] =~ /^(\d+)/;

	if ($how eq 'fast shutdown') { $node->stop('fast') }
	else { $node->kill9 }
	cmp_ok(seconds_to_end($_), '<', $at_once, "$how ends the wait") foreach @line;
	is(${ $_->{out} }, '', "$how: nothing granted") foreach @line;
	foreach my $attempt (1 .. 1800)
	{
		last if !grep { kill 0, $_ } @pids;
		sleep(0.1);
	}
	$node->start;
	is(locks_left(), '0', "$how: no lock is left");
}

$node->stop;
done_testing();
