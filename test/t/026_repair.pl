# What the isolation tests of force_release() and purge() cannot show: the
# process that a warning names, the server's log, a head that sleeps.

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

my $node = new_node('repair', 'fsync = off', 'log_statement = none',
	'max_prepared_transactions = 2');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Result and messages of a call.
sub force
{
	my ($key, $token, $wait) = @_;
	my (undef, $out, $err) = $node->psql('postgres',
		"SET ROLE operator; SELECT fenced_lock.force_release('$key', $token, '$wait')",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return ($out, $err);
}

sql('CREATE ROLE operator; GRANT EXECUTE ON FUNCTION fenced_lock.force_release TO operator');

# Who is in the way

my ($token, $owner) = acquire($node, 'pinned', '1 h');
my @holders = map { $node->background_psql('postgres') } 1, 2;
my @pids;
foreach my $holder (@holders)
{
	push @pids, $holder->query_safe('SELECT pg_backend_pid()');
	$holder->query_safe('BEGIN');
	$holder->query_safe("SELECT fenced_lock.pin('pinned', $token)");
}
my $position = log_position($node);
my ($out, $err) = force('pinned', $token, '0');
is($out, 'f', 'pinned: false');
like($err, qr/WARNING:  55P03: could not force the release of the lock on key "pinned": /,
	'pinned: a warning');
like($err, qr/process $_ /, 'pinned: it names the process in the way') foreach @pids;
like($err, qr/HINT:.*pg_terminate_backend/, 'pinned: and says what to do');

my $since = time;
($out, $err) = force('pinned', $token, '2 s');
is($out, 'f', 'pinned for longer than the wait: false');
like($err, qr/process $pids[0] /, 'pinned for longer than the wait: a warning that names the process');
cmp_ok(time - $since, '>=', 2, 'pinned for longer than the wait: it has waited');
unlike(log_since($node, $position), qr/forced the release/, 'in vain: the log tells of no release');

# What the hint says
sql("SELECT pg_terminate_backend($_, 60000)") foreach @pids;
close_session($_) foreach @holders;
($out, $err) = force('pinned', $token, '1 min');
is("$out$err", 't', 'once they are terminated: true');
is(scalar(() = log_since($node, $position) =~
		/LOG:  role "operator" forced the release of the lock on key "pinned", fencing token $token$/mg),
	1, 'the log tells who did it, to which lease');

# A prepared transaction

($token, $owner) = acquire($node, 'prepared', '1 h');
sql("BEGIN; SELECT fenced_lock.pin('prepared', $token); PREPARE TRANSACTION 'p'");
($out, $err) = force('prepared', $token, '0');
is($out, 'f', 'pinned by a prepared transaction: false');
like($err, qr/WARNING:  55P03: .*a prepared transaction keeps it/, 'pinned by a prepared transaction: a warning that says so');
sql("COMMIT PREPARED 'p'");

# A hand on the row

my $hand = $node->background_psql('postgres');
$hand->query_safe("BEGIN; SELECT key FROM fenced_lock.lock_row WHERE key = 'prepared' FOR UPDATE");
($out, $err) = force('prepared', $token, '0');
is($out, 'f', 'kept by a hand: false');
like($err, qr/WARNING:  55P03: .*by hand/, 'kept by a hand: a warning that says so');
close_session($hand);

# Not current: no warning, nothing in the log

$position = log_position($node);
($out, $err) = force('prepared', $token + 1, '0');
is("$out$err", 'f', 'a token that is not current: false, without a warning');
unlike(log_since($node, $position), qr/forced/, 'a token that is not current: nothing in the log');

# A head that sleeps

my ($granted, $complaint) = ('', '');
($token, $owner) = acquire($node, 'waited for', '1 h');
my $waiter = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $node->connstr('postgres'),
		'-c', "SELECT acquired, fencing_token > $token FROM fenced_lock.acquire('waited for', wait => '10 min')" ],
	'<', \undef, '>', \$granted, '2>', \$complaint,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM fenced_lock.waiters WHERE key = 'waited for'")
  or die 'nobody waits';
sql("SELECT fenced_lock.purge('0')");
is( sql("SELECT fenced_lock.pin('waited for', $token)"),
	't', 'purge beside somebody who waits for a lease: it is held as before');
$since = time;
($out, $err) = force('waited for', $token, '0');
is("$out$err", 't', 'force_release beside somebody who waits for a lease: true');
$waiter->finish;
is($granted, "t|t\n", 'who waited is granted the key');
cmp_ok(time - $since, '<', 60, 'who waited is granted it right after');
like(error_of($node, "SELECT fenced_lock.pin('waited for', $token)"),
	qr/^LF001: /, 'and its holder is fenced');

# Purges, renewals, pins and grants of a few keys, all at once: no deadlock, and
# nobody who holds a lease finds it gone.

sql(q{
	CREATE TABLE found (what text);
	CREATE PROCEDURE hold(n int) LANGUAGE plpgsql AS $$
	DECLARE
		l fenced_lock.lease;
		held text;
	BEGIN
		FOR i IN 1 .. n LOOP
			held := 'busy ' || floor(random() * 5);
			l := fenced_lock.try_acquire(held, '20 ms');
			COMMIT;
			CONTINUE WHEN NOT l.acquired;
			FOR j IN 1 .. 3 LOOP
				EXIT WHEN fenced_lock.renew(held, l.owner_token, '10 min') IS NULL;
				COMMIT;
				PERFORM fenced_lock.pin(held, l.fencing_token);
				COMMIT;
			END LOOP;
			COMMIT;
			INSERT INTO found SELECT 'held'
			 WHERE fenced_lock.renew(held, l.owner_token, '1 ms') IS NOT NULL;
			COMMIT;
		END LOOP;
	END $$;
	CREATE PROCEDURE purge(n int) LANGUAGE plpgsql AS $$
	DECLARE
		purged bigint := 0;
	BEGIN
		FOR i IN 1 .. n LOOP
			purged := purged + fenced_lock.purge('0');
			COMMIT;
		END LOOP;
		INSERT INTO found SELECT 'purged' WHERE purged > 0;
	END $$});
my @working = (
	start_pgbench($node, 'CALL hold(1500);', '-c', 4, '-j', 2, '-t', 1),
	start_pgbench($node, 'CALL purge(3000);', '-c', 2, '-j', 1, '-t', 1));
ok($_->finish, 'purges, grants, renewals and pins all at once: nobody who holds a lease is refused')
  foreach @working;
is(sql("SELECT count(DISTINCT what) FROM found"), '2', 'there were some');
unlike(log_since($node, 0), qr/deadlock|40P01/, 'and no deadlock');

# A lease that was granted after purge() has seen that the key was free, and
# before it has the key's lock. The purge is stopped somewhere: most of its time
# it is just there, since it can have none of the locks.

sql(q{
	CREATE PROCEDURE purge_for_ever() LANGUAGE plpgsql AS $$
	BEGIN
		LOOP
			PERFORM fenced_lock.purge('0');
			COMMIT;
		END LOOP;
	END $$});
my $keys = "FROM (SELECT 'seen ' || generate_series(1, 200) AS key) k";
my ($gone, $tried) = (0, 0);
my $pinner = $node->background_psql('postgres');
foreach my $attempt (1 .. 15)
{
	$pinner->query_safe('SET fenced_lock.pin_idle_timeout = off; BEGIN');
	$pinner->query_safe("SELECT count(*) $keys, fenced_lock.try_acquire(key, '1 h', md5(key)::uuid) WHERE acquired");
	$pinner->query_safe('COMMIT; BEGIN');
	$pinner->query_safe("SELECT count(fenced_lock.pin(l.key, fencing_token)) $keys JOIN fenced_lock.locks l USING (key)");
	sql("SELECT count(fenced_lock.renew(key, md5(key)::uuid, '1 ms')) $keys; SELECT pg_sleep(0.01)");

	my ($out, $err) = ('', '');
	my $purge = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'CALL purge_for_ever()' ],
		'<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'CALL purge_for_ever()' AND state = 'active'")
	  or die 'the purge did not start';
	my $pid = sql("SELECT pid FROM pg_stat_activity WHERE query = 'CALL purge_for_ever()'");
	select undef, undef, undef, 0.01 + rand 0.02;

	# Where it is stopped with a page in its hands, this goes on after a second.
	kill 'STOP', $pid;
	my ($granted, $complaint) = ('', '');
	my $taker = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'),
			'-c', "SELECT count(*) $keys, fenced_lock.try_acquire(key, '1 h', wait => '1 min') WHERE acquired" ],
		'<', \undef, '>', \$granted, '2>', \$complaint,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$pinner->{stdin} .= "COMMIT;\n";
	$pinner->{run}->pump_nb;
	my $until = time + 1;
	while (time < $until && $taker->pumpable)
	{
		$taker->pump_nb;
		select undef, undef, undef, 0.01;
	}
	kill 'CONT', $pid;
	$taker->finish;
	sql("SELECT pg_terminate_backend($pid, 60000)");
	eval { $purge->finish };

	$tried++ if $granted eq "200\n";
	$gone += sql("SELECT count(*) $keys LEFT JOIN fenced_lock.locks l USING (key) WHERE l.key IS NULL");
	sql("SELECT count(fenced_lock.force_release(key, fencing_token)) $keys JOIN fenced_lock.locks l USING (key)");
}
close_session($pinner);
cmp_ok($tried, '>', 0, 'all keys granted amid a purge');
is($gone, 0, 'a lease that is granted amid a purge is not purged');

$node->stop;
done_testing();
