# Where guards could get lost: a dump that is restored, a standby, the replica
# role, logical replication. Each time view guards tells what is in force.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('primary');
# ICU, for one of the tables, needs an encoding that it knows.
$node->init(
	allows_streaming => 'logical',
	extra => [ '--encoding', 'UTF8', '--locale', 'C' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION fenced_lock');

sub sql { my ($db, $sql) = @_; return $node->safe_psql($db, $sql); }

# The SQLSTATE of a statement; empty if it went through.
sub sqlstate
{
	my ($db, $sql) = @_;
	my (undef, undef, $err) =
	  $node->psql($db, "\\set VERBOSITY sqlstate\n$sql");
	return $err =~ /ERROR:\s+(\w{5})/ ? $1 : '';
}

# --- dump and restore ---

# A collation that takes different texts for equal, if this PostgreSQL has one.
my $collation = sql('postgres', q{SELECT count(*) FROM pg_collation WHERE collprovider = 'i'})
  ? q{(provider = icu, locale = 'und-u-ks-level2', deterministic = false)}
  : q{FROM "C"};

# All that protect() can make, of a plain owner who knows no superuser.
sql('postgres', q{
	CREATE ROLE owner LOGIN;
	GRANT CREATE ON SCHEMA public TO owner;
	SELECT fenced_lock.allow('owner');
	SET ROLE owner;
	CREATE DOMAIN amount AS numeric CHECK (VALUE > -1000);
	CREATE TABLE wallets (id int PRIMARY KEY, balance amount, note varchar(20), seen timestamptz);
	INSERT INTO wallets VALUES (1, 100, 'a', now());
	SELECT fenced_lock.protect('wallets', 'wallet:{id}', 'fence', '{balance,note}', on_insert => true, add_stamp => true);
	CREATE COLLATION ignore_case } . $collation . q{;
	CREATE TABLE names (name text COLLATE ignore_case, seen int);
	INSERT INTO names VALUES ('Åsa');
	SELECT fenced_lock.protect('names', $$it's \ {name}$$, columns => '{name}', on_truncate => false);
	CREATE TABLE ledger (id int, region text) PARTITION BY LIST (region);
	CREATE TABLE ledger_eu PARTITION OF ledger FOR VALUES IN ('eu') PARTITION BY RANGE (id);
	CREATE TABLE ledger_eu_1 PARTITION OF ledger_eu FOR VALUES FROM (1) TO (10);
	INSERT INTO ledger VALUES (1, 'eu');
	SELECT fenced_lock.protect('ledger', 'ledger:{region}:{id}');
	CREATE TABLE parent (id int);
	CREATE TABLE child () INHERITS (parent);
	INSERT INTO child VALUES (1);
	SELECT fenced_lock.protect('parent', 'parent:{id}');
	ALTER TABLE child DISABLE TRIGGER "~fenced_lock_truncate";
	ALTER TABLE parent ENABLE ALWAYS TRIGGER "~fenced_lock_delete"});
my $guards = 'SELECT * FROM fenced_lock.guards ORDER BY relation::text';
my $before = sql('postgres', $guards);
is(scalar(split /\n/, $before), 7, 'seven tables are guarded');
is(sql('postgres', 'SELECT count(*) FROM fenced_lock.guards WHERE NOT in_force'),
	'0', 'all guards are in force');

my $dump = $node->basedir . '/dump';
command_ok(
	[
		'pg_dump', '--format', 'custom', '--file', $dump, '--username', 'owner',
		'--host', $node->host, '--port', $node->port, 'postgres' ],
	'a plain owner dumps the database');
sql('postgres', 'CREATE DATABASE restored');
command_ok(
	[
		'pg_restore', '--exit-on-error', '--jobs', '2', '--dbname', 'restored',
		'--host', $node->host, '--port', $node->port, $dump ],
	'the dump is restored');
is(sql('restored', $guards), $before, 'restored guards are what they were, and in force');

my %refused = (
	'UPDATE wallets SET balance = 0' => 'LF101',
	"UPDATE wallets SET note = 'b'" => 'LF101',
	'UPDATE wallets SET seen = now()' => '',
	'DELETE FROM wallets' => 'LF101',
	'INSERT INTO wallets VALUES (2, 0)' => 'LF101',
	'TRUNCATE wallets' => '55000',
	"UPDATE names SET name = 'åsa'" => 'LF101',
	"UPDATE ledger SET region = 'us'" => 'LF101',
	'DELETE FROM ledger_eu_1' => 'LF101',
	'TRUNCATE ledger_eu_1' => '55000',
	'DELETE FROM parent' => 'LF101',
	'TRUNCATE ONLY parent' => '55000');
foreach my $statement (sort keys %refused)
{
	is(sqlstate('restored', $statement),
		$refused{$statement},
		"restored: $statement: " . ($refused{$statement} || 'goes free'));
}
my ($token) = acquire($node, 'wallet:1', '5 min', 'restored');
is( sql('restored',
		"UPDATE wallets SET balance = balance - 1
		   FROM fenced_lock.pin('wallet:1', $token) WHERE id = 1
		 RETURNING balance, fence = $token"),
	'99|t',
	'restored: under a pin it is written and stamped');
is(sql('restored', "SELECT fenced_lock.unprotect('ledger'), fenced_lock.protect('ledger', 'ledger:{region}:{id}')"),
	't|t', 'restored: unprotect knows its triggers');

# --- a standby ---

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is($standby->safe_psql('postgres', "SET ROLE owner; $guards"),
	$before, 'the view shows the same on a hot standby');
my (undef, undef, $err) = $standby->psql('postgres',
	"\\set VERBOSITY sqlstate\nSELECT fenced_lock.unprotect('wallets')");
like($err, qr/25006/, 'unprotect on a standby is refused');
$standby->stop;

# --- another session's temporary table ---

my $session = $node->background_psql('postgres');
$session->query_safe('CREATE TEMP TABLE fleeting (id int)');
$session->query_safe(q{SELECT fenced_lock.protect('fleeting', 'fleeting:{id}')});
my $oid = sql('postgres', q{SELECT oid FROM pg_class WHERE relname = 'fleeting'});
foreach my $call ("protect($oid, 'x')", "unprotect($oid)")
{
	is(sqlstate('postgres', "SELECT fenced_lock.$call"),
		'0A000', "a temporary table of another session: " . ($call =~ s/\d+/…/r));
}
is(sql('postgres', "SELECT in_force FROM fenced_lock.guards WHERE relation = $oid"),
	't', 'a temporary table of another session is shown');
close_session($session);

# --- what ordinary triggers do not see ---

is( sqlstate('postgres',
		'SET session_replication_role = replica; UPDATE wallets SET balance = 101'),
	'',
	'the replica role goes round a guard');
is( sqlstate('postgres',
		'SET session_replication_role = replica; DELETE FROM ONLY child'),
	'',
	'the replica role goes round a guard on a child');
sql('postgres', 'ALTER TABLE wallets ENABLE ALWAYS TRIGGER "~fenced_lock_update"');
is( sqlstate('postgres',
		'SET session_replication_role = replica; UPDATE wallets SET balance = 102'),
	'LF101',
	'but not round one that is enabled always');
is( sql('postgres',
		"SELECT enabled, in_force FROM fenced_lock.guards WHERE relation = 'wallets'::regclass"),
	'mixed|t',
	'the view shows the mode');
sql('postgres', 'ALTER TABLE wallets ENABLE TRIGGER "~fenced_lock_update"');

# The write was checked where it was made; its apply is not checked again.
sql('postgres', 'CREATE PUBLICATION pub FOR TABLE wallets');
sql('postgres', q{SELECT pg_create_logical_replication_slot('sub', 'pgoutput')});
my $publisher = $node->connstr('postgres');
sql('restored', "CREATE SUBSCRIPTION sub CONNECTION \$\$$publisher\$\$
	PUBLICATION pub WITH (create_slot = false, slot_name = 'sub', copy_data = false)");
($token) = acquire($node, 'wallet:1', '5 min');
sql('postgres',
	"UPDATE wallets SET balance = 77 FROM fenced_lock.pin('wallet:1', $token) WHERE id = 1");
$node->wait_for_catchup('sub');
is( sql('restored', "SELECT balance, fence = $token FROM wallets"),
	'77|t',
	'logical apply goes round a guard, stamp included');
is(sqlstate('restored', 'UPDATE wallets SET balance = 0'),
	'LF101', 'the subscriber\'s own sessions do not');
sql('restored', 'DROP SUBSCRIPTION sub');

$node->stop;
done_testing();
