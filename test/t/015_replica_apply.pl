# Logical replication.  Writes are checked where they are made; what a subscriber
# applies is not checked again, since ordinary triggers do not fire for it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $origin = new_node('origin', 'wal_level = logical', 'max_wal_senders = 5');
# An apply worker that fails is started again at once.
my $subscriber = new_node('subscriber', 'wal_retrieve_retry_interval = 100ms');

sub sqlstate
{
	my ($node, $statement) = @_;
	my ($status, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY sqlstate\n$statement");

	return $err =~ /ERROR:\s+(\w+)/ ? $1 : 'done';
}

sub enabled
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT tgenabled FROM pg_trigger WHERE tgrelid = 'wallet'::regclass AND tgname = 'zz_guard'");
}

foreach my $node ($origin, $subscriber)
{
	$node->safe_psql('postgres', q{
		CREATE TABLE wallet (id int PRIMARY KEY, balance int, fence bigint);
		CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
			FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence')});
	is(enabled($node), 'O',
		$node->name . ': a guard is installed as an ordinary trigger');
}

# A holder, its successor, and a row that was there before the subscription.
my ($stale) = acquire($origin, 'wallet:1', '1 ms');
$origin->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM fenced_lock.locks WHERE key = 'wallet:1'")
  or die 'the lease did not end';
my ($token) = acquire($origin, 'wallet:1', '10 min');
my ($other) = acquire($origin, 'wallet:2', '10 min');
$origin->safe_psql('postgres',
	"INSERT INTO wallet SELECT 1, 100 FROM fenced_lock.pin('wallet:1', $token)");

$origin->safe_psql('postgres', 'CREATE PUBLICATION wallets FOR TABLE wallet');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION wallets CONNECTION '"
	  . $origin->connstr
	  . " dbname=postgres' PUBLICATION wallets");
$subscriber->wait_for_subscription_sync($origin, 'wallets');

sub rows
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT * FROM wallet ORDER BY id');
}
is(rows($subscriber), "1|100|$token",
	'initial copy of a subscription: not guarded');

# Where the write is made it is checked ...
is( sqlstate($origin,
		"UPDATE wallet SET balance = 0 FROM fenced_lock.pin('wallet:1', $stale)"),
	'LF001', 'a stale write is refused at its origin');
is(sqlstate($origin, 'UPDATE wallet SET balance = 0'),
	'LF101', 'a write without a pin is refused at its origin');
is( sqlstate($origin,
		"UPDATE wallet SET balance = 90 FROM fenced_lock.pin('wallet:1', $token)"),
	'done', 'an update under the current pin passes');
is( sqlstate($origin,
		"INSERT INTO wallet SELECT 2, 50 FROM fenced_lock.pin('wallet:2', $other)"),
	'done', 'an insert under the current pin passes');
$origin->wait_for_catchup('wallets');

# ... and where it is applied it is not.
is(rows($subscriber), "1|90|$token\n2|50|$other",
	'logical replication apply: not guarded');
is( $subscriber->safe_psql('postgres',
		"SELECT count(*) FROM fenced_lock.locks"),
	'0', 'the subscriber has no lease of these keys');
is(sqlstate($subscriber, 'UPDATE wallet SET balance = 0'),
	'LF101', 'a write of the subscriber\'s own is checked');
is( sqlstate($origin,
		"DELETE FROM wallet USING fenced_lock.pin('wallet:2', $other) WHERE id = 2"),
	'done', 'a delete under the current pin passes');
$origin->wait_for_catchup('wallets');
is(rows($subscriber), "1|90|$token", 'a delete is applied unchecked');

# A trigger that fires always stops the subscription: its worker has no pin.
my $position = log_position($subscriber);
$subscriber->safe_psql('postgres',
	'ALTER TABLE wallet ENABLE ALWAYS TRIGGER zz_guard');
is(enabled($subscriber), 'A', 'the guard fires always');
$origin->safe_psql('postgres',
	"UPDATE wallet SET balance = 80 FROM fenced_lock.pin('wallet:1', $token)");
ok( $subscriber->wait_for_log(
		qr/ERROR:  (?:LF101: )?write to table public\.wallet without a pin of key "wallet:1"/,
		$position),
	'logical replication apply, ENABLE ALWAYS TRIGGER: refused');
is(rows($subscriber), "1|90|$token", 'and nothing is applied');
$subscriber->safe_psql('postgres',
	'ALTER TABLE wallet ENABLE TRIGGER zz_guard');
$origin->wait_for_catchup('wallets');
is(rows($subscriber), "1|80|$token",
	'an ordinary trigger again, it goes on where it stood');
is(enabled($subscriber), 'O', 'the guard is an ordinary trigger');

$subscriber->stop;
$origin->stop;
done_testing();
