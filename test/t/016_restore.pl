# What restoring a dump does to guarded tables: a whole dump brings its rows
# before its triggers, data alone comes by COPY through the triggers.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('restore');
my $dumps = $node->basedir;

sub rows
{
	my ($db) = @_;
	return $node->safe_psql($db, 'SELECT id, balance, fence IS NOT NULL FROM wallet ORDER BY id');
}

sub enabled
{
	my ($db) = @_;
	return $node->safe_psql($db,
		"SELECT string_agg(format('%s %s', tgname, tgenabled), ', ' ORDER BY tgname)
		   FROM pg_trigger WHERE tgrelid = 'wallet'::regclass");
}

$node->safe_psql('postgres', q{
	CREATE TABLE wallet (id int PRIMARY KEY, balance int, fence bigint);
	CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallet
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
	CREATE TRIGGER zz_guard_truncate BEFORE TRUNCATE ON wallet
		FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence')});
my ($token) = acquire($node, 'wallet:1', '10 min');
$node->safe_psql('postgres',
	"INSERT INTO wallet SELECT 1, 100 FROM fenced_lock.pin('wallet:1', $token)");
my @guards = enabled('postgres');

foreach my $dump (
	[ 'whole', '-Fc' ],
	[ 'schema', '-Fc', '--schema-only' ],
	[ 'data', '-Fc', '--data-only', '--table=wallet' ])
{
	my ($name, @options) = @$dump;
	$node->command_ok(
		[ 'pg_dump', @options, '-f', "$dumps/$name", $node->connstr('postgres') ],
		"$name dump");
}

# A restored row keeps its stamp, and is guarded from then on.
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(whole parts);
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('whole'), "$dumps/whole" ],
	'the whole dump is restored');
is(rows('whole'), '1|100|t', 'pg_restore of a whole dump: not guarded');
is(enabled('whole'), "@guards", 'the guards are restored, in force');
my ($status, $out, $err) = $node->psql('whole', 'UPDATE wallet SET balance = 0');
like($err, qr/without a pin of key "wallet:1"/, 'and refuse a write without a pin');

# Data into a table that has its guard already.
my @restore_data = ('pg_restore', '--exit-on-error', '-d', $node->connstr('parts'));
$node->command_ok([ @restore_data, "$dumps/schema" ], 'the schema is restored');
$node->command_fails_like(
	[ @restore_data, '--data-only', "$dumps/data" ],
	qr/without a pin of key "wallet:1"/,
	'pg_restore --data-only: refused');
is(rows('parts'), '', 'nothing is restored');
$node->command_ok(
	[ @restore_data, '--data-only', '--disable-triggers', "$dumps/data" ],
	'the data is restored with triggers disabled');
is(rows('parts'), '1|100|t',
	'pg_restore --data-only --disable-triggers: not guarded');
is(enabled('parts'), "@guards", 'the guards are in force again');

$node->stop;
done_testing();
