# The wall clock of the server is set forwards and back, by a library that is
# preloaded into it: what becomes of leases, waits and tokens.
#
# Steps are of an hour and more, so that the machine's own slowness is nothing
# beside them.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

my $minute = 60;
my $hour = 60 * $minute;
my $year = 365 * 24 * $hour;

# The library, and the clock that it shows.

my $folder = PostgreSQL::Test::Utils::tempdir();
my $library = "$folder/clock_step.so";
my $offset = 0;    # seconds

system_or_bail($ENV{CC} // 'gcc', '-shared', '-fPIC', '-O1', '-o', $library,
	"$FindBin::RealBin/clock_step.c");

open my $file, '+>', "$folder/offset" or die "$folder/offset: $!";

sub step
{
	my ($seconds) = @_;

	$offset += $seconds;
	sysseek $file, 0, 0;
	syswrite $file, pack 'q', $offset * 1_000_000;
	return;
}

step(0);
$ENV{CLOCK_STEP_FILE} = "$folder/offset";
my $node = PostgreSQL::Test::Cluster->new('clock');

sub start
{
	local $ENV{LD_PRELOAD} = $library;
	$node->start;
}

$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\ncheckpoint_timeout = 1h\nlog_statement = none");
start();
sql('CREATE EXTENSION fenced_lock');
sql("CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL);
	 INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 9) i;
	 CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}')");

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub monotonic { return clock_gettime(CLOCK_MONOTONIC); }

# A session in the background; "place" is where it will stand in the key's line.
sub start_session
{
	my ($key, $place, $statement) = @_;
	my ($out, $err) = ('', '');
	my $session = {
		out => \$out,
		err => \$err,
		since => monotonic(),
		handle => IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-d', $node->connstr('postgres'), '-c', $statement ],
			'<', \undef, '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
	};

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM fenced_lock.waiters WHERE key = '$key' AND place = $place")
	  or die "nobody waits in place $place";
	return $session;
}

# What it has printed, and how long it took
sub finish
{
	my ($session) = @_;

	$session->{handle}->finish;
	my $printed = ${ $session->{out} } . ${ $session->{err} };
	$printed =~ s/\n/ /g;
	return ($printed =~ s/ $//r, monotonic() - $session->{since});
}

sub try
{
	my ($key) = @_;
	return sql("BEGIN; SELECT acquired FROM fenced_lock.try_acquire('$key'); ROLLBACK");
}

#
# The clock is what we take it for
#

my $before = sql('SELECT extract(epoch FROM clock_timestamp())');
step(10 * $year);
my $after = sql('SELECT extract(epoch FROM clock_timestamp())');
cmp_ok($after - $before, '>=', 10 * $year, 'the clock of the server can be set forwards');
step(-10 * $year);
cmp_ok(sql('SELECT extract(epoch FROM clock_timestamp())') - $before, '<', $year, 'and back');

#
# Forwards: a lease ends early, and its holder is fenced
#

my ($token, $owner) = acquire($node, 'wallet:1', '1 h');
my $write = "UPDATE wallets SET balance = 0 FROM fenced_lock.pin('wallet:1', $token) WHERE id = 1";
step(2 * $hour);
like(error_of($node, $write), qr/^LF002: /, 'freed early: a write of its holder is refused');
is(sql("SELECT fenced_lock.renew('wallet:1', '$owner') IS NULL"), 't', 'freed early: a renewal, too');
my ($successor) = acquire($node, 'wallet:1', '1 h');
like(error_of($node, $write), qr/^LF001: .*token is $successor/,
	'freed early and taken over: a write of its holder is refused');
step(-2 * $hour);
like(error_of($node, $write), qr/^LF001: /, 'also when the clock is set right again');
is(sql('SELECT balance FROM wallets WHERE id = 1'), '100', 'nothing was written');

# What was pinned before the step is kept.
($token) = acquire($node, 'wallet:2', '1 h');
my $holder = $node->background_psql('postgres');
$holder->query_safe("SET fenced_lock.pin_idle_timeout = off; BEGIN; SELECT fenced_lock.pin('wallet:2', $token)");
step(2 * $hour);
is(sql("SELECT acquired, retry_after_ms FROM fenced_lock.try_acquire('wallet:2')"),
	'f|100', 'pinned before the step: nobody is granted the key');
$holder->query_safe("UPDATE wallets SET balance = 90 WHERE id = 2; COMMIT");
is(try('wallet:2'), 't', 'until that transaction has ended');
close_session($holder);

#
# Back: a hold becomes longer by the step, and no more
#

($token, $owner) = acquire($node, 'longer', '10 min');
my $end = sql("SELECT extract(epoch FROM expires_at) FROM fenced_lock.lock_row WHERE key = 'longer'");
step(-$hour);
is(try('longer'), 'f', 'set back: a lease is held');
is( sql("SELECT retry_after_ms BETWEEN 1 AND 600000 FROM fenced_lock.try_acquire('longer')"),
	't', 'set back: retry_after_ms is no longer than its ttl');
step($hour + 5 * $minute);
is(try('longer'), 'f', 'set back by an hour: it is held for an hour more');
step(6 * $minute);
is(try('longer'), 't', 'set back by an hour: and for no longer than that');
is(sql("SELECT fenced_lock.renew('longer', '$owner') IS NULL"), 't', 'its holder thinks so, too');

# A holder that renews has its ttl from the present.
($token, $owner) = acquire($node, 'renewed', '10 min');
step(-$hour);
is( sql("SELECT fenced_lock.renew('renewed', '$owner') <= clock_timestamp() + '10 min'"),
	't', 'set back: a renewal counts from the present clock');
step(11 * $minute);
is(try('renewed'), 't', 'and the lease ends by it');

# Years, to a waiter: no dead holder keeps its key for longer than a ttl.
sql("SELECT fenced_lock.try_acquire('dead', '3 s')");
step(-3 * $year);
is( sql("SELECT retry_after_ms BETWEEN 1 AND 3000 FROM fenced_lock.try_acquire('dead')"),
	't', 'set back by years: retry_after_ms is no longer than the ttl');
my $head = start_session('dead', 1, "SELECT 'granted', fenced_lock.release('dead', owner_token) FROM fenced_lock.acquire('dead', wait => '150 s')");
my $follower = start_session('dead', 2, "SELECT 'granted', fenced_lock.release('dead', owner_token) FROM fenced_lock.acquire('dead', wait => '150 s')");
my ($said, $seconds) = finish($head);
is($said, 'granted|t', 'set back by years: who waits is granted a dead lease');
cmp_ok($seconds, '>=', 2.9, 'set back by years: after its ttl');
is((finish($follower))[0], 'granted|t', 'set back by years: and so is the next in line');

# The clock is set back by years while one waits.
step(3 * $year);
sql("SELECT fenced_lock.try_acquire('dead later', '8 s')");
$head = start_session('dead later', 1, "SELECT 'granted' FROM fenced_lock.acquire('dead later', wait => '150 s')");
step(-3 * $year);
is((finish($head))[0], 'granted', 'set back by years in the midst of a wait: granted');
step(3 * $year);

#
# Waits keep their length
#

($token, $owner) = acquire($node, 'waited for', '1 h');
my $wait = "SELECT acquired FROM fenced_lock.try_acquire('waited for', wait => '6 s')";
foreach my $minutes (-90, 30)
{
	my $step = $minutes < 0 ? 'back' : 'forwards';

	# Above what is left of the lease at all times
	sql("SELECT fenced_lock.renew('waited for', '$owner', '1 h')");
	$head = start_session('waited for', 1, $wait);
	step($minutes * $minute);
	($said, $seconds) = finish($head);
	is($said, 'f', "a step $step in the midst of a wait: refused");
	cmp_ok($seconds, '>=', 5.9, "a step $step in the midst of a wait: it is not shorter");
	cmp_ok($seconds, '<', 120, "a step $step in the midst of a wait: it is not longer");
	step(-$minutes * $minute);
}

# Behind others, and behind an open transaction, it is PostgreSQL's lock timer
# that ends a wait, which a step back lengthens by as much.
$head = start_session('waited for', 1, "SELECT acquired FROM fenced_lock.acquire('waited for', wait => '150 s')");
$follower = start_session('waited for', 2, $wait);
step(-10);
($said, $seconds) = finish($follower);
is($said, 'f', 'a step back in the midst of a wait behind others: refused');
cmp_ok($seconds, '>=', 14, 'a step back in the midst of a wait behind others: longer by the step');
cmp_ok($seconds, '<', 160, 'a step back in the midst of a wait behind others: no longer than that');
sql("SELECT fenced_lock.release('waited for', '$owner')");
is((finish($head))[0], 't', 'the head is granted the key at last');
step(10);

($token) = acquire($node, 'pinned', '1 h');
$holder = $node->background_psql('postgres');
$holder->query_safe("SET fenced_lock.pin_idle_timeout = off; BEGIN; SELECT fenced_lock.pin('pinned', $token)");
step(2 * $hour);
$head = start_session('pinned', 1, "SELECT acquired FROM fenced_lock.try_acquire('pinned', wait => '6 s')");
step(-10);
($said, $seconds) = finish($head);
is($said, 'f', 'a step back in the midst of a wait for an open transaction: refused');
cmp_ok($seconds, '>=', 14, 'a step back in the midst of a wait for an open transaction: longer by the step');
cmp_ok($seconds, '<', 160, 'a step back in the midst of a wait for an open transaction: no longer than that');
$holder->query_safe('COMMIT');
close_session($holder);
step(10);

#
# Tokens, across a restart with the clock set back
#

foreach my $again (1, 2)
{
	my ($last) = acquire($node, "before start $again", '1 ms');
	my $position = log_position($node);

	$node->stop;
	step(-3 * $year);
	start();
	my ($next) = acquire($node, "after start $again", '1 ms');
	cmp_ok($next, '>', $last + 2**32, "set back before start $again: tokens go on 2^32 above the last");
	cmp_ok($next, '<=', $last + 2**32 + 33, "set back before start $again: and no further");
	like(
		log_since($node, $position),
		qr/fencing tokens of this database go on from \d+ after a start of the server: the last one, \d+, is ahead of the clock/,
		"set back before start $again: the log tells");
}

$node->stop;
done_testing();
