# Crashes of the server, of a server process, of a client: what was granted
# stays granted until its ttl, and a token that was seen never comes again.
#
# A crash and restart by itself moves the tokens to the clock, which would hide
# a token that was lost. So most of this happens where the clock is no help:
# with the sequence set far ahead of it, and with the death of a single server
# process, after which the postmaster goes on without a new start.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $ahead_of_clock = '1152921504606846976';    # 2^60

my $node = new_node('crash', 'fsync = on', 'restart_after_crash = on');

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub is_granted
{
	my ($key) = @_;
	return sql("SELECT acquired FROM fenced_lock.try_acquire('$key')");
}

sub crash
{
	kill_server($node);
	$node->start;
	return;
}

# Ends the session, and the server or its process under it.
sub end_session
{
	my ($session, $how) = @_;

	if ($how eq 'immediate stop')
	{
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		crash_backend($session->query_safe('SELECT pg_backend_pid()'));
	}
	close_session($session);
}

# kill -9 of one server process. All others go down with it, and memory with
# them, but the postmaster stays.
sub crash_backend
{
	my ($pid) = @_;
	my $position = log_position($node);

	kill 9, $pid;
	$node->wait_for_log(
		qr/all server processes terminated.*ready to accept connections/s,
		$position);
	return;
}

sub all_rows
{
	return sql('SELECT r::text FROM fenced_lock.lock_row r ORDER BY key');
}

# The server dies.

my ($held_token, $held_owner) = acquire($node, 'held', '10 min');
my ($free_token, $free_owner) = acquire($node, 'free', '10 min');
sql("SELECT fenced_lock.release('free', '$free_owner')");
sql("SELECT fenced_lock.try_acquire('noted', '10 min', NULL, '{\"job\": 7}')");
my ($short_token) = acquire($node, 'short', '5 s');
my $before = all_rows();
my $short_end = sql(
	"SELECT expires_at FROM fenced_lock.lock_row WHERE key = 'short'");

crash();
is(all_rows(), $before,
	'kill -9 of the server: leases, holders and tokens are what they were');
is(is_granted('held'), 'f', 'kill -9 of the server: a held key is refused');
is(is_granted('free'), 't', 'kill -9 of the server: a free key is granted');
is( sql("SELECT fenced_lock.pin('held', $held_token)"),
	't', 'kill -9 of the server: the holder can pin');
is( sql("SELECT fenced_lock.renew('held', '$held_owner') IS NOT NULL"),
	't', 'kill -9 of the server: the holder can renew');
ok( $node->poll_query_until(
		'postgres', "SELECT acquired FROM fenced_lock.try_acquire('short')"),
	'kill -9 of the server: the key of a dead holder is granted in the end');
is( sql(
		"SELECT acquired_at >= '$short_end' FROM fenced_lock.lock_row
		  WHERE key = 'short'"),
	't',
	'kill -9 of the server: it was not granted before the ttl was over');
is(is_granted('noted'), 'f',
	'kill -9 of the server: a lease is not cut short');

# A holder dies, that is its client.

my $holder = $node->background_psql('postgres');
my $client = $holder->query('\! echo $PPID');
$holder->query_safe("SELECT fenced_lock.try_acquire('orphan', '3 s')");
my $orphan_end = sql(
	"SELECT expires_at FROM fenced_lock.lock_row WHERE key = 'orphan'");
kill 9, $client;
close_session($holder);
ok( $node->poll_query_until(
		'postgres', "SELECT acquired FROM fenced_lock.try_acquire('orphan')"),
	'kill -9 of a holder: its key is granted in the end');
is( sql(
		"SELECT acquired_at BETWEEN '$orphan_end'
		        AND timestamptz '$orphan_end' + interval '30 s'
		   FROM fenced_lock.lock_row WHERE key = 'orphan'"),
	't',
	'kill -9 of a holder: its key was granted once the ttl was over');

# A holder's server process dies.

$holder = $node->background_psql('postgres');
$holder->query_safe("SELECT fenced_lock.try_acquire('backend', '10 min')");
$before = all_rows();
crash_backend($holder->query_safe('SELECT pg_backend_pid()'));
close_session($holder);
is(all_rows(), $before,
	'kill -9 of a server process: leases, holders and tokens are what they were'
);
is(is_granted('backend'), 'f',
	'kill -9 of a server process: its lease goes on');

# A transaction that was granted a key, and whose client knows the token, is
# still open when the server stops.

my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN');
my $seen = $session->query_safe(
	"SELECT fencing_token FROM fenced_lock.try_acquire('open')");
$node->stop('immediate');
close_session($session);
$node->start;
is(sql("SELECT count(*) FROM fenced_lock.lock_row WHERE key = 'open'"),
	'0', 'immediate stop before the commit: there is no lease');
my ($next) = acquire($node, 'open', '10 min');
cmp_ok($next, '>', $seen,
	'immediate stop before the commit: its token is not issued again');

# The same where the clock is no help.

sql("SELECT setval('fenced_lock.token_seq', $ahead_of_clock)");
foreach my $how ('immediate stop', 'kill -9 of a server process')
{
	foreach my $settings (
		'synchronous_commit = on',
		'synchronous_commit = off',
		'synchronous_commit = off; SET fenced_lock.durable_grants = off')
	{
		foreach my $end ('before the commit', 'after the commit')
		{
			my $case = "$how $end, $settings";

			# Nothing logged ahead by an earlier draw shall help either.
			sql("SELECT setval('fenced_lock.token_seq', last_value)
			       FROM fenced_lock.token_seq");
			$session = $node->background_psql('postgres');
			$session->query_safe("SET $settings");
			$session->query_safe('BEGIN') if $end eq 'before the commit';
			$seen = $session->query_safe(
				"SELECT fencing_token FROM fenced_lock.try_acquire('$case')");
			die 'not ahead of the clock' if $seen < $ahead_of_clock;

			end_session($session, $how);

			($next) = acquire($node, "$case, next", '10 min');
			cmp_ok($next, '>', $seen, "$case: the token is not issued again");
		}
	}
}

is( sql("SELECT count(*) FROM fenced_lock.lock_row
		  WHERE key LIKE '% after the commit, %' AND key NOT LIKE '%, next'
		    AND key NOT LIKE '%durable_grants%'"),
	'4',
	'a durable grant survives a crash, also under synchronous_commit = off');

# The very first use of a sequence.

foreach my $how ('immediate stop', 'kill -9 of a server process')
{
	sql('DROP EXTENSION fenced_lock');
	sql('CREATE EXTENSION fenced_lock');
	sql("SELECT setval('fenced_lock.token_seq', $ahead_of_clock)");

	$session = $node->background_psql('postgres');
	$session->query_safe('BEGIN');
	$seen = $session->query_safe(
		"SELECT fencing_token FROM fenced_lock.try_acquire('first')");
	end_session($session, $how);

	($next) = acquire($node, 'first', '10 min');
	cmp_ok($next, '>', $seen,
		"$how after the first draw ever: the token is not issued again");
}

# Several crashes, each in the midst of draws and checkpoints. What a client
# has seen is what psql has printed.

my $clients = 4;
my %issued;
my ($repeated, $falling, $highest) = (0, 0, 0);

sub start_psql
{
	my ($script, $out) = @_;
	my $file = $node->basedir . '/' . ++our $scripts . '.sql';

	append_to_file($file, $script);
	return IPC::Run::start(
		[ 'psql', '-XAtq', '-f', $file, '-d', $node->connstr('postgres') ],
		'<', \undef, '>', $out, '2>', '/dev/null');
}

foreach my $round (1 .. 5)
{
	my @out = map { $node->basedir . "/seen.$round.$_" } 1 .. $clients;
	my @psql = map {
		my $key = "round $round client $_";
		start_psql(
			"SET synchronous_commit = off;\n"
			  . "SET fenced_lock.durable_grants = off;\n" . (
				"SELECT fencing_token FROM fenced_lock.try_acquire('$key', '1 ms');\n"
				  . "BEGIN;\n"
				  . "SELECT fencing_token FROM fenced_lock.try_acquire('$key, again');\n"
				  . "ROLLBACK;\n"
			) x 20_000,
			$out[ $_ - 1 ]);
	} 1 .. $clients;
	push @psql,
	  start_psql("CHECKPOINT;\nSELECT pg_sleep(0.02);\n" x 20_000, '/dev/null');

	# Each client has seen some.
	foreach my $attempt (1 .. 600)
	{
		last if !grep { (-s $_ // 0) < 4_000 } @out;
		select undef, undef, undef, 0.1;
	}
	if ($round % 2)
	{
		crash_backend(
			sql(
				"SELECT pid FROM pg_stat_activity
				  WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
				  LIMIT 1"));
	}
	else
	{
		crash();
	}
	$_->finish foreach @psql;

	my $count = 0;
	foreach my $file (@out)
	{
		my $last = $highest;

		# A last line that is not complete is no token.
		foreach my $token (slurp_file($file) =~ /^(\d+)\n/mg)
		{
			$repeated++ if $issued{$token}++;
			$falling++ if $token <= $last;
			$last = $token;
			$count++;
		}
	}
	($highest) = sort { $b <=> $a } keys %issued;
	($next) = acquire($node, "round $round", '10 min');
	cmp_ok($count, '>', 500, "crash $round: the clients have seen tokens");
	cmp_ok($next, '>', $highest,
		"crash $round amid draws: the next token is above every seen one");
	$issued{$next}++;
	$highest = $next;
}
is($repeated, 0, 'over all crashes no token was issued twice');
is($falling, 0, 'over all crashes the tokens that a client saw rose');

$node->stop;
done_testing();
