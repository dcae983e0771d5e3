# A wake-up that fails, at a moment when an error would be a PANIC, does no
# harm: the commit stands, and the head finds the key free at its next look.
# The error is a real one. On a server with room for many sessions, asking the
# lock manager for the head takes more memory than a backend has at hand, and
# the system is told to give it no more.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('wake_up_fails', 'fsync = off', 'max_connections = 50000', 'max_locks_per_transaction = 10');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Sets how much address space a backend may have; without a size, any.
sub limit_memory
{
	my ($pid, $bytes) = @_;
	system('prlimit', "--pid=$pid", '--as=' . ($bytes // 'unlimited') . ':') == 0
	  or die 'prlimit failed';
	return;
}

sub memory
{
	my ($pid) = @_;
	return (split / /, slurp_file("/proc/$pid/statm"))[0] * `getconf PAGESIZE`;
}

my ($token, $owner) = acquire($node, 'k', '1 h');
my $waiter = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('k', wait => '60 s')", key => 'k');

my $holder = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $holder->query_safe('SELECT pg_backend_pid()');

# What a release needs is at hand.
foreach (1 .. 2)
{
	$holder->query_safe("SELECT fenced_lock.renew('k', '$owner')");
	$holder->query_safe("SET client_min_messages = error; SELECT fenced_lock.release('k', gen_random_uuid())");
}
my $position = log_position($node);
limit_memory($pid, memory($pid));
is($holder->query("SELECT fenced_lock.release('k', '$owner')"), 't', 'the release is committed');
limit_memory($pid);

# An error that runs out of memory shows where the memory is; it is caught
# after that.
my $log = log_since($node, $position);
like($log, qr/^\s*fenced_lock wake-ups: /m, 'the wake-up has run out of memory');
unlike($log, qr/PANIC|FATAL|terminated/, 'nothing else has happened');

seconds_to_end($waiter);
is(${ $waiter->{out} }, "t\n", 'the head is granted the key, at its next look');

# The session goes on, and listens: a count of held-off interrupts that is
# wrong would make it deaf.
is($holder->query('SELECT pg_backend_pid()'), $pid, 'the session goes on');
$holder->query("SET statement_timeout = '1 s'");
my $since = time;
$holder->query('SELECT pg_sleep(60)');
cmp_ok(time - $since, '<', 6, 'the session can be cancelled');
$holder->query('RESET statement_timeout');

# Its wake-ups work again.
($token, $owner) = acquire($node, 'again', '1 h');
$waiter = start_waiter($node, "SELECT acquired FROM fenced_lock.acquire('again', wait => '60 s')", key => 'again');
is($holder->query("SELECT fenced_lock.release('again', '$owner')"), 't', 'it can release again');
seconds_to_end($waiter);
is(${ $waiter->{out} }, "t\n", 'and its waiter is granted');
close_session($holder);
$node->stop;
done_testing();
