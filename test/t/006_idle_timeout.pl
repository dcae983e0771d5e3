# A client that freezes with a pinned key in an open transaction does not keep
# its successor out for longer than the lease's whole ttl: a pin lowers
# idle_in_transaction_session_timeout for its transaction.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('idle', 'fsync = off');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What the statements show of the timeout, in milliseconds, at each TIMEOUT.
sub timeouts
{
	my ($statements) = @_;

	$statements =~ s/TIMEOUT/SELECT setting FROM pg_settings
		WHERE name = 'idle_in_transaction_session_timeout'/g;
	return join ' ', split /\n/, sql("\\o /dev/null\n"
		  . $statements =~ s/(SELECT setting[^;]*);/\\o\n$1;\n\\o \/dev\/null\n/gr);
}

my ($token, $owner) = acquire($node, 'twenty', '20 s');
my ($long_token) = acquire($node, 'thirty', '30 s');
my $pin = "SELECT fenced_lock.pin('twenty', $token);";
my $pin_long = "SELECT fenced_lock.pin('thirty', $long_token);";

is(timeouts("BEGIN; TIMEOUT; $pin TIMEOUT; COMMIT; TIMEOUT;"),
	'0 20000 0', 'a pin sets the timeout to the ttl, COMMIT undoes it');
is(timeouts("BEGIN; $pin TIMEOUT; ROLLBACK; TIMEOUT;"),
	'20000 0', 'a pin sets the timeout to the ttl, ROLLBACK undoes it');
is( timeouts("BEGIN; $pin SAVEPOINT s; SELECT 1; TIMEOUT; RELEASE s; TIMEOUT; COMMIT;"),
	'20000 20000',
	'the timeout lasts through later savepoints');
is( timeouts(
		"BEGIN; SAVEPOINT s; $pin TIMEOUT; ROLLBACK TO s; TIMEOUT; $pin TIMEOUT; COMMIT; TIMEOUT;"
	),
	'20000 0 20000 0',
	"the savepoint's rollback undoes it, and a pin taken again sets it");
is( timeouts("BEGIN; SAVEPOINT s; $pin RELEASE s; TIMEOUT; COMMIT; TIMEOUT;"),
	'20000 0',
	'the release of the savepoint keeps it');
is( timeouts(
		"BEGIN; $pin_long TIMEOUT; SAVEPOINT s; $pin TIMEOUT; ROLLBACK TO s; TIMEOUT; COMMIT;"
	),
	'30000 20000 30000',
	"a savepoint's rollback brings the outer pin's timeout back");
is(timeouts("BEGIN; $pin $pin_long TIMEOUT; COMMIT;"),
	'20000', 'of two pins the shorter ttl counts, pinned first');
is(timeouts("BEGIN; $pin_long $pin TIMEOUT; COMMIT;"),
	'20000', 'of two pins the shorter ttl counts, pinned last');
is( timeouts(
		"SET idle_in_transaction_session_timeout = '7 s'; BEGIN; $pin TIMEOUT; COMMIT; TIMEOUT;"
	),
	'7000 7000',
	'a timeout that is shorter is not raised');
is( timeouts(
		"SET idle_in_transaction_session_timeout = '1 h'; BEGIN; $pin TIMEOUT; COMMIT; TIMEOUT;"
	),
	'20000 3600000',
	'a timeout that is longer is lowered and comes back');
is( timeouts(
		"BEGIN; SET LOCAL idle_in_transaction_session_timeout = '7 s'; $pin TIMEOUT; COMMIT; TIMEOUT;"
	),
	'7000 0',
	'a timeout set in the transaction is not raised');
is(timeouts("$pin TIMEOUT;"),
	'0', 'a pin outside of a transaction block sets nothing');
is( timeouts(
		"BEGIN; DO \$\$ BEGIN PERFORM fenced_lock.pin('twenty', $token); END \$\$; TIMEOUT; COMMIT;"
	),
	'20000',
	'a pin inside a DO block sets it for the transaction');
is( timeouts(
		"BEGIN; UPDATE pg_class SET relname = relname FROM fenced_lock.pin('twenty', $token) WHERE false; "
		  . "SELECT FROM pg_class WHERE oid = 'pg_class'::regclass AND fenced_lock.pin('twenty', $token); TIMEOUT; ROLLBACK;"
	),
	'20000',
	'a pin inside a query sets it');

is( timeouts(
		"BEGIN; SELECT fenced_lock.try_acquire('granted here', '20 s'); TIMEOUT; COMMIT; TIMEOUT;"
	),
	'20000 0',
	'a grant in the transaction is a pin, and sets it too');
is( timeouts(
		"BEGIN; SELECT fenced_lock.try_acquire('granted briefly', '5 ms'); TIMEOUT; COMMIT;"
	),
	'1000',
	'the timeout is one second at least');
is( timeouts(
		"BEGIN; SELECT fenced_lock.try_acquire('twenty', '20 s', '$owner'); TIMEOUT; COMMIT;"
	),
	'20000',
	'a lease that is held already sets it');
is( timeouts(
		"BEGIN; SELECT fenced_lock.try_acquire('twenty'); TIMEOUT; COMMIT;"),
	'0',
	'a refused try leaves it');
is( timeouts(
		"BEGIN; SELECT fenced_lock.renew('twenty', '$owner'); TIMEOUT; COMMIT;"),
	'0',
	'a renewal leaves it');
is( timeouts(
		"SET fenced_lock.pin_idle_timeout = off; BEGIN; $pin TIMEOUT; SELECT fenced_lock.try_acquire('granted quietly'); TIMEOUT; COMMIT;"
	),
	'0 0',
	'pin_idle_timeout = off leaves it');

# A client that freezes. Its twin, whose timeout is left alone, shows that it
# is the pin that keeps the successor out, and that it does so for longer.

my %frozen;
foreach my $timeout ('on', 'off')
{
	# The pin has to come while the lease lives.
	foreach my $ttl (2, 10, 30)
	{
		my $key = "frozen $timeout $ttl";
		my ($token) = acquire($node, $key, "$ttl s");
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query("SET fenced_lock.pin_idle_timeout = $timeout");
		$session->query('BEGIN');
		if ($session->query("SELECT fenced_lock.pin('$key', $token)") eq 't')
		{
			$frozen{$timeout} = { key => $key, session => $session };
			last;
		}
		close_session($session);
	}
}

ok( $node->poll_query_until(
		'postgres',
		"SELECT acquired FROM fenced_lock.try_acquire('$frozen{on}{key}')"),
	'the successor of a frozen client is granted the key');
$node->wait_for_log(
	qr/terminating connection due to idle-in-transaction timeout/);
pass('the frozen client was terminated');

$node->poll_query_until(
	'postgres', "SELECT expires_at < clock_timestamp()
	               FROM fenced_lock.lock_row WHERE key = '$frozen{off}{key}'")
  or die 'a lease did not end';
is( sql("SELECT acquired FROM fenced_lock.try_acquire('$frozen{off}{key}')"),
	'f',
	'without the timeout the successor is kept out after the ttl');
is($frozen{off}{session}->query('SELECT 1'),
	'1', 'without the timeout the frozen client lives on');
close_session($_->{session}) foreach values %frozen;

$node->stop;
done_testing();
