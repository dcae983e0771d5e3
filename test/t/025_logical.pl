# Logical replication of a whole database, the extension's tables included: the
# subscriber, which has the extension itself, keeps up under lock traffic; guards
# do not fire for what it applies; taking over, it issues higher tokens.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_node('publisher', 'wal_level = logical',
	'max_wal_senders = 10', 'max_replication_slots = 10', 'wal_writer_delay = 200ms', 'log_statement = none');
my $subscriber = new_node('subscriber', 'wal_level = logical',
	'max_wal_senders = 10', 'log_statement = none', 'wal_retrieve_retry_interval = 200ms');

sub sql { return $_[0]->safe_psql('postgres', $_[1]); }

sub catch_up { $publisher->wait_for_catchup('all_of_it'); }

my $tables = q{
	CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL, fence bigint);
	CREATE TRIGGER zz_fence BEFORE INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
};
sql($_, $tables) foreach $publisher, $subscriber;

# A role that the subscriber has never heard of
sql($publisher, "CREATE ROLE only_here LOGIN; SELECT fenced_lock.allow('only_here'); GRANT ALL ON wallets TO only_here");
sql($publisher, "BEGIN; ALTER TABLE wallets DISABLE TRIGGER USER;
	INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 9) i;
	ALTER TABLE wallets ENABLE TRIGGER USER; COMMIT");
my ($token, $owner) = acquire($publisher, 'before', '1 h');

# The subscriber's own locks, in a session that has looked up all there is.
my ($own_token, $own_owner) = acquire($subscriber, 'own', '1 h');
my $session = $subscriber->background_psql('postgres', on_error_stop => 0);
my $place = $session->query_safe("SELECT fenced_lock.lock_id('own')");

#
# The initial copy
#

my $connection = $publisher->connstr . ' dbname=postgres';
sql($publisher, 'CREATE PUBLICATION all_of_it FOR ALL TABLES');
sql($subscriber, "CREATE SUBSCRIPTION all_of_it CONNECTION '$connection' PUBLICATION all_of_it");
$subscriber->wait_for_subscription_sync($publisher, 'all_of_it');
my $wallets = 'SELECT * FROM wallets ORDER BY id';
is(sql($subscriber, $wallets), sql($publisher, $wallets), 'the copy is complete');
is( sql($subscriber, "SELECT fencing_token FROM fenced_lock.lock_row WHERE key = 'before'"),
	$token, 'the copy has the leases, too');
is($session->query_safe("SELECT fenced_lock.lock_id('own')"),
	$place, 'the keys of the subscriber have the locks that they had');
is(sql($subscriber, "SELECT fenced_lock.lock_id('own')"), $place, 'also in a new session');
is( sql($subscriber, "SELECT acquired FROM fenced_lock.try_acquire('own')"),
	'f', "the subscriber's own lease is held");
is( sql($subscriber, "SELECT fenced_lock.renew('own', '$own_owner') IS NOT NULL AND fenced_lock.pin('own', $own_token)"),
	't', 'and its holder goes on');

#
# Traffic
#

my $clients = start_pgbench(
	$publisher, "\\set id random(1, 9)
	SELECT acquired::int AS acquired, coalesce(fencing_token, 0) AS token, coalesce(owner_token::text, '') AS owner
	  FROM fenced_lock.try_acquire('wallet:' || :id, '1 min', wait => '1 s') \\gset
	\\if :acquired
	SELECT fenced_lock.renew('wallet:' || :id, ':owner');
	BEGIN;
	SELECT fenced_lock.pin('wallet:' || :id, :token);
	UPDATE wallets SET balance = balance + 1 WHERE id = :id;
	COMMIT;
	SELECT fenced_lock.release('wallet:' || :id, ':owner');
	\\endif
	SELECT fencing_token FROM fenced_lock.try_acquire('once ' || :client_id || ' ' || random(), '1 ms');
	", '-U', 'only_here', '-c', 4, '-j', 2, '-t', 100, '-M', 'simple');
ok($clients->finish, 'clients at work on the publisher');
sql($publisher, "SELECT fenced_lock.purge('0', 100)") foreach 1 .. 2;
my ($forced) = acquire($publisher, 'forced', '1 h');
sql($publisher, "SELECT fenced_lock.force_release('forced', $forced)");
# Transaction ids of the publisher mean nothing to the subscriber.
sql($publisher, 'DO $$ BEGIN FOR i IN 1 .. 5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
my ($held, $held_owner) = acquire($publisher, 'wallet:9', '1 h');
sql($publisher, "BEGIN; SELECT fenced_lock.try_acquire('rolled back', '1 h'); ROLLBACK");
catch_up();

is(sql($subscriber, $wallets), sql($publisher, $wallets),
	'guarded writes are applied without a pin, with their stamps');
cmp_ok(sql($subscriber, 'SELECT sum(balance) FROM wallets'), '>', 900, 'there were some');
my $rows = 'SELECT key, fencing_token, owner_digest, ttl, acquired_at, renewed_at, expires_at
  FROM fenced_lock.lock_row WHERE key <> \'own\' ORDER BY key, fencing_token';
is(sql($subscriber, $rows), sql($publisher, $rows),
	'grants, renewals, releases, purges, forced releases are applied');
is(join("\n", log_since($subscriber, 0) =~ /^.*(?:ERROR|WARNING).*$/mg), '',
	'nothing has failed to be applied');
is( sql($subscriber, "SELECT count(*) FROM fenced_lock.locks WHERE key IN ('wallet:9', 'own')"),
	'2', 'view locks of the subscriber shows the leases of both');
like(error_of($subscriber, 'UPDATE wallets SET balance = 0 WHERE id = 1'),
	qr/^LF101: /, "the subscriber's guard refuses a write of its own");

#
# It takes over
#

my $highest = sql($publisher, 'SELECT last_value FROM fenced_lock.token_seq');
$publisher->stop('immediate');
sql($subscriber, $_)
  foreach 'ALTER SUBSCRIPTION all_of_it DISABLE',
  'ALTER SUBSCRIPTION all_of_it SET (slot_name = NONE)',
  'DROP SUBSCRIPTION all_of_it';
is( sql($subscriber, "SELECT acquired FROM fenced_lock.try_acquire('wallet:9')"),
	'f', 'taken over: a lease that the publisher has granted is held');
is( sql($subscriber, "SELECT fenced_lock.renew('wallet:9', '$held_owner') IS NOT NULL AND fenced_lock.pin('wallet:9', $held)"),
	't', 'taken over: its holder renews and pins');
foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
{
	is( error_of($subscriber,
			"BEGIN ISOLATION LEVEL $level; SELECT fenced_lock.pin('wallet:9', $held);
			 UPDATE wallets SET balance = balance + 1 WHERE id = 9; COMMIT"),
		'', "taken over: and writes, $level");
}
my ($next) = acquire($subscriber, 'wallet:1', '1 h');
cmp_ok($next, '>', $highest, 'taken over: the first token is above all of the publisher');
is( sql($subscriber, "UPDATE wallets SET balance = 1000 FROM fenced_lock.pin('wallet:1', $next) WHERE id = 1 RETURNING fence"),
	$next, 'taken over: a stamped row is written under it');
close_session($session);

$subscriber->stop;
done_testing();
