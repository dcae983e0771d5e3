# At every isolation level sessions with keys of their own leave each other
# alone: nothing of ours causes a serialization failure, on a lock table so
# small that its few pages are everybody's.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('serializable', 'fsync = off', 'log_statement = none');
my ($clients, $cycles) = (8, 100);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# A guarded table for each client, so that theirs cannot be what fails.
foreach my $client (0 .. $clients - 1)
{
	sql("CREATE TABLE wallet_$client (id int PRIMARY KEY, balance int, fence bigint);
		INSERT INTO wallet_$client VALUES ($client, 0, 0);
		CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON wallet_$client
			FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence')");
}
my $owner = q{md5(':client_id')::uuid};
my $key = q{'wallet:' || :client_id};
sql("SELECT fenced_lock.try_acquire('wallet:' || i, '1 ms')
	   FROM generate_series(0, $clients - 1) i");

# Each transaction lasts for a while after our call, one longer, one less, so
# that they overlap in all ways.
my $linger = ', pg_sleep(random() * 0.006) AS slept \gset';
my $acquire = "
	SELECT (fenced_lock.try_acquire($key, '1 min', $owner)).fencing_token AS token
	       $linger";
my $renew = "SELECT 1 / (fenced_lock.renew($key, $owner) IS NOT NULL)::int AS renewed";
my $release = "SELECT 1 / fenced_lock.release($key, $owner)::int AS released";
my $update = 'UPDATE wallet_:client_id SET balance = balance + 1';

my $leases_alone = "
	$acquire
	$renew $linger
	$release $linger
";
my $guarded_write = "
	$acquire
	$renew $linger
	BEGIN;
	SELECT fenced_lock.pin($key, :token) AS pinned $linger
	$update WHERE id = :client_id;
	$renew $linger
	COMMIT;
	$update FROM fenced_lock.pin($key, :token) WHERE id = :client_id;
	BEGIN;
	SELECT fenced_lock.pin($key, :token) AS pinned $linger
	$update WHERE id = :client_id;
	$release $linger
	COMMIT;
";

foreach my $isolation ('read committed', 'repeatable read', 'serializable')
{
	my $count = $clients * $cycles;

	sql("ALTER SYSTEM SET default_transaction_isolation = '$isolation'");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('default_transaction_isolation') = '$isolation'"
	) or die 'the setting did not come into force';

	# A refused statement counts as a failed transaction or ends the client.
	foreach my $work (
		[ 'acquire, renew, release', $leases_alone ],
		[ 'with pins and guarded writes', $guarded_write ])
	{
		my ($what, $script) = @$work;
		my $position = log_position($node);

		# All keys on one page of the index again.
		sql('VACUUM FULL ANALYZE fenced_lock.lock_row');
		$node->pgbench(
			"-n -c $clients -j 2 -t $cycles",
			0,
			[
				qr{actually processed: $count/$count},
				qr{failed transactions: 0 \(0\.000%\)}
			],
			[],
			"$isolation, $what: no call fails",
			{ "007_$isolation $what" =~ s/\W+/_/gr => $script });
		unlike(log_since($node, $position), qr/ERROR:/,
			"$isolation, $what: no ERROR line in the log");
	}

	is( sql('SELECT ' . join ' + ', map { "(SELECT balance FROM wallet_$_)" }
			  0 .. $clients - 1),
		3 * $count,
		"$isolation: all guarded writes are there");
	sql(join ';',
		map {
			"ALTER TABLE wallet_$_ DISABLE TRIGGER guard;
			UPDATE wallet_$_ SET balance = 0;
			ALTER TABLE wallet_$_ ENABLE TRIGGER guard"
		} 0 .. $clients - 1);
}

# What is refused there, and how.

my $session = $node->background_psql('postgres', on_error_stop => 0);
my ($token) = acquire($node, 'before', '10 min');

$session->query("\\set VERBOSITY sqlstate");
foreach my $isolation ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $outcome = sub {
		my ($statement) = @_;
		$session->{stderr} = '';
		my $out = $session->query($statement);
		return $session->{stderr} =~ /ERROR:\s+(\w+)/ ? $1 : $out;
	};

	$outcome->("BEGIN ISOLATION LEVEL $isolation");
	is($outcome->("SELECT fenced_lock.try_acquire('refused')"),
		'25001', "$isolation: acquire in a transaction block is refused");
	$outcome->('ROLLBACK');

	$outcome->("BEGIN ISOLATION LEVEL $isolation");
	$outcome->('SELECT 1');
	my ($later) = acquire($node, "later $isolation", '10 min');
	is($outcome->("SELECT fenced_lock.pin('before', $token)"),
		't', "$isolation: a lease of before the snapshot can be pinned");
	is($outcome->("SELECT fenced_lock.pin('later $isolation', $later)"),
		'40001',
		"$isolation: a lease of after the snapshot is a serialization failure");
	$outcome->('ROLLBACK');

	$outcome->("BEGIN ISOLATION LEVEL $isolation");
	is($outcome->("SELECT fenced_lock.pin('later $isolation', $later)"),
		't', "$isolation: the retry can pin it");
	$outcome->('ROLLBACK');
}
close_session($session);

$node->stop;
done_testing();
