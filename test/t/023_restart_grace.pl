# fenced_lock.restart_grace: leases that ended while the server was down, or a
# little before, go on until a little after its start, by the opinion of all:
# renew, take over, pin, view, purge, force_release, release.
#
# The grace is long and what is to be past is written by hand, so that nothing
# here depends on how quick the machine is.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('grace', 'fsync = off');
my (%token, %owner);

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub take
{
	my ($ttl, @keys) = @_;
	($token{$_}, $owner{$_}) = acquire($node, $_, $ttl) foreach @keys;
}

# Down until all leases with that ttl have ended.
sub be_down
{
	my ($ttl) = @_;
	$node->stop;
	sleep $ttl + 1;
	$node->start;
}

sub start { return sql('SELECT pg_postmaster_start_time()'); }

# A lease of before the start, ended at a moment that is told from the start.
sub set_end
{
	my ($key, $end) = @_;
	sql("UPDATE fenced_lock.lock_row SET renewed_at = pg_postmaster_start_time() - interval '1 h',
	        expires_at = pg_postmaster_start_time() + interval '$end' WHERE key = '$key'");
}

# What each of the calls thinks of a lease; none changes it if it is over.
sub opinions
{
	my ($key) = @_;
	return (
		pin => error_of($node, "SELECT fenced_lock.pin('$key', $token{$key})") eq '' ? 'held' : 'over',
		take_over => sql("BEGIN; SELECT CASE WHEN acquired THEN 'over' ELSE 'held' END
		                    FROM fenced_lock.try_acquire('$key'); ROLLBACK"),
		view => sql("SELECT CASE WHEN count(*) = 0 THEN 'over' ELSE 'held' END
		               FROM fenced_lock.locks WHERE key = '$key'"),
		purge => sql("BEGIN; SELECT fenced_lock.purge('0') IS NULL \\g /dev/null
			SELECT CASE WHEN count(*) = 0 THEN 'over' ELSE 'held' END FROM fenced_lock.lock_row WHERE key = '$key'; ROLLBACK"),
		renew => sql("BEGIN; SELECT CASE WHEN fenced_lock.renew('$key', '$owner{$key}') IS NULL
			THEN 'over' ELSE 'held' END; ROLLBACK"));
}

sub all_think
{
	my ($opinion, $key, $what) = @_;
	my %opinions = opinions($key);
	is("$_: $opinions{$_}", "$_: $opinion", "$what: $_")
	  foreach sort keys %opinions;
}

#
# Without it
#

take('1 s', 'default');
be_down(1);
all_think('over', 'default', 'default: a lease that ended while the server was down is over');

#
# With it
#

my $grace = '30min';
$node->append_conf('postgresql.conf', "fenced_lock.restart_grace = '$grace'");
take('1 s', 'looked at', 'renewed', 'pinned', 'waited for', 'released late', 'forced', 'asked for again', 'by hand');
take('10 min', 'ends soon');
take('1 h', 'ends late', 'released');
sql("SELECT fenced_lock.release('released', '$owner{released}')");
my $late = sql("SELECT expires_at FROM fenced_lock.lock_row WHERE key = 'ends late'");
be_down(1);

is(sql('SHOW fenced_lock.restart_grace'), $grace, "the grace is $grace");
all_think('held', 'looked at', 'a lease that ended while the server was down');
is( sql("SELECT key, expires_at - pg_postmaster_start_time() FROM fenced_lock.locks
		  WHERE key IN ('looked at', 'ends soon') ORDER BY key"),
	"ends soon|00:30:00\nlooked at|00:30:00",
	'in view locks it, and one that ends within the grace, ends at start + grace');
is(sql("SELECT expires_at FROM fenced_lock.locks WHERE key = 'ends late'"),
	$late, 'a lease that ends later than that ends when it ends');
is( sql("SELECT acquired, retry_after_ms > 60000 AND retry_after_ms <= 1800000
		   FROM fenced_lock.try_acquire('looked at')"),
	'f|t', 'try_acquire() is refused until start + grace');
like(
	error_of($node, "SELECT fenced_lock.acquire('looked at', wait => '1500 ms')"),
	qr/^55P03: /, 'acquire() waits in vain');
is( sql("SELECT count(*) FROM fenced_lock.locks WHERE key = 'released'"),
	'0', 'a lease that was released is over');
is(sql("SELECT acquired FROM fenced_lock.try_acquire('released', '1 ms')"),
	't', 'a lease that was released: granted');
sql('SELECT pg_sleep(0.01)');
is(sql("SELECT acquired FROM fenced_lock.try_acquire('released', '1 ms')"),
	't', 'a lease that was granted after the start has no grace');

# Each of those who have come back
is( sql("SELECT fenced_lock.renew('renewed', '$owner{renewed}', '1 ms') < clock_timestamp() + '1 min'"),
	't', 'its holder renews');
sql('SELECT pg_sleep(0.01)');
is(sql("SELECT acquired FROM fenced_lock.try_acquire('renewed')"),
	't', 'a lease that was renewed after the start has no grace any more');

sql("CREATE TABLE wallets (id text, balance int); INSERT INTO wallets VALUES ('pinned', 100);
	 CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{id}')");
is( sql("UPDATE wallets SET balance = 90 FROM fenced_lock.pin('pinned', $token{pinned}) RETURNING balance"),
	'90', 'its holder writes');
is( sql("SELECT already_held, fencing_token = $token{'asked for again'}
		   FROM fenced_lock.try_acquire('asked for again', '1 h', '$owner{'asked for again'}')"),
	't|t', 'its holder asks again: the same lease');

my ($out, $err) = ('', '');
my $waiter = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $node->connstr('postgres'),
		'-c', "SELECT acquired FROM fenced_lock.acquire('waited for', wait => '10 min')" ],
	'<', \undef, '>', \$out, '2>', \$err,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM fenced_lock.waiters WHERE key = 'waited for'")
  or die 'nobody waits';
is(sql("SELECT fenced_lock.release('waited for', '$owner{'waited for'}')"),
	't', 'its holder releases');
$waiter->finish;
is($out, "t\n", 'and who waits for it is granted it');

is(sql("SELECT fenced_lock.force_release('forced', $token{forced})"),
	't', 'an operator ends it');
all_think('over', 'forced', 'one that an operator has ended');
is(sql("SELECT fenced_lock.release('released late', '$owner{'released late'}')"),
	't', 'its holder releases it late');
all_think('over', 'released late', 'one that was released late');

# The limits
set_end('by hand', '-29 min -59 s');
all_think('held', 'by hand', 'a lease that ended a little less than the grace before the start');
foreach my $end ('-30 min', '-30 min -1 s', '-1 h')
{
	set_end('by hand', $end);
	all_think('over', 'by hand', "a lease that ended $end before the start");
}

#
# It is one for all sessions
#

like(error_of($node, "LOAD 'fenced_lock'; SET fenced_lock.restart_grace = '2 h'"),
	qr/^55P02: /, 'a session cannot set it');
is( sql("SET fenced_lock.restart_grace = '2 h';
		 SELECT fenced_lock.pin('ends late', $token{'ends late'});
		 SHOW fenced_lock.restart_grace"),
	"t\n30min", 'nor before it has called anything');
my @sessions = map { $node->background_psql('postgres', on_error_stop => 0) } 1, 2;
my $look = "SELECT acquired FROM fenced_lock.try_acquire('by hand', '1 ms')";
set_end('by hand', '-45 min');
sub everyone
{
	my ($setting) = @_;

	sql("ALTER SYSTEM SET fenced_lock.restart_grace = '$setting'");
	$node->reload;
	foreach my $session (@sessions)
	{
		foreach my $attempt (1 .. 1800)
		{
			last if $session->query_safe('SHOW fenced_lock.restart_grace') eq $setting;
			select undef, undef, undef, 0.1;
		}
	}
}
is($_->query_safe("BEGIN; $look; ROLLBACK"), 't', 'a session takes what is over') foreach @sessions;
everyone('1h');
is($_->query_safe($look), 'f', 'after a reload with a longer grace: held in a session of before') foreach @sessions;
all_think('held', 'by hand', 'after a reload with a longer grace');
everyone('0');
all_think('over', 'by hand', 'after a reload with no grace');
all_think('over', 'looked at', 'after a reload with no grace, another');
is($_->query_safe("BEGIN; $look; ROLLBACK"), 't', 'after a reload with no grace: over in a session of before') foreach @sessions;
close_session($_) foreach @sessions;

$node->stop;
done_testing();
