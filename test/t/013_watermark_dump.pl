# The marks of tokens from elsewhere outlive whatever PostgreSQL outlives: a
# crash, a failover, dump and restore, also by a plain owner. Leases are not
# dumped.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('marks');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', <<'EOF_CONF');
autovacuum = off
checkpoint_timeout = 1h
wal_writer_delay = 10s
EOF_CONF
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What a statement comes to: its result, or the error's SQLSTATE and message.
sub outcome
{
	my ($server, $db, $statement) = @_;
	my ($rc, $out, $err) =
	  $server->psql($db, "\\set VERBOSITY verbose\n$statement");

	return $rc == 0 ? $out : $err =~ s/.*?ERROR:\s+([^\n]*).*/$1/sr;
}

# A database that is a plain owner's but for the extension.
sql('CREATE ROLE owner LOGIN');
sql('CREATE DATABASE shop OWNER owner');
$node->safe_psql('shop', <<'EOF_SQL');
CREATE EXTENSION fenced_lock;
SELECT fenced_lock.allow('owner');
SET ROLE owner;
CREATE SCHEMA shop;
CREATE TABLE shop.wallets (id int PRIMARY KEY, balance int, fence bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON shop.wallets
	FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard_watermark('wallet:{id}', 'fence');
CREATE TABLE shop.jobs (id int PRIMARY KEY, fence bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON shop.jobs
	FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('job:{id}', 'fence');
SELECT fenced_lock.admit('wallet:1', 1000), fenced_lock.admit(E'odd\tkey\\ "ü"', 7);
INSERT INTO shop.wallets SELECT 1, 100 FROM fenced_lock.admit('wallet:1', 1000);
EOF_SQL
my ($token) = acquire($node, 'job:1', '1 h', 'shop');
$node->safe_psql('shop',
	"INSERT INTO shop.jobs SELECT 1 FROM fenced_lock.pin('job:1', $token)");
my $marks =
  'SELECT key, fencing_token, admitted_at FROM fenced_lock.watermark ORDER BY 1';
my $before = $node->safe_psql('shop', $marks);
like($before, qr/wallet:1\|1000\|.*/, 'there are marks to dump');

sub check_restored
{
	my ($db, $what) = @_;

	is($node->safe_psql($db, $marks), $before, "$what: the marks are there");
	like(
		outcome($node, $db, "SELECT fenced_lock.admit('wallet:1', 999)"),
		qr/^LF001: stale fencing token 999 .* token 1000/,
		"$what: a stale token stays stale");
	like(outcome($node, $db, 'UPDATE shop.wallets SET balance = 0'),
		qr/^LF101: /, "$what: the guard is there");
	is( outcome($node, $db,
			"UPDATE shop.wallets SET balance = balance - 10
			   FROM fenced_lock.admit('wallet:1', 1000) RETURNING balance, fence"
		),
		'90|1000',
		"$what: the holder goes on");
	is( $node->safe_psql($db, 'SELECT count(*) FROM fenced_lock.lock_row'),
		'0', "$what: no lease is there");
	my ($next) = acquire($node, 'job:1', '1 h', $db);
	ok($next > $token, "$what: tokens of ours go on rising");
	is( outcome($node, $db,
			"UPDATE shop.jobs SET id = id FROM fenced_lock.pin('job:1', $next) RETURNING fence = $next"
		),
		't',
		"$what: the next holder of a lease can write");
}

# dump and restore, each with psql or pg_restore
foreach my $way (
	[ 'plain, by a superuser', 'postgres', 'plain' ],
	[ 'custom, by a superuser', 'postgres', 'custom' ],
	[ 'plain, by a plain owner', 'owner', 'plain' ])
{
	my ($what, $user, $format) = @$way;
	my $db = "restored_" . ++our $databases;
	my $file = $node->basedir . "/$db.dump";

	$node->command_ok(
		[ 'pg_dump', '-U', $user, '-F', $format, '-f', $file, 'shop' ],
		"$what: dumped");
	sql("CREATE DATABASE $db OWNER owner");
	$node->command_ok(
		$format eq 'plain'
		? [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $file, $db ]
		: [ 'pg_restore', '--exit-on-error', '-d', $db, $file ],
		"$what: restored");
	check_restored($db, $what);
}

# Restored where there are marks already, the higher one counts.
sql('CREATE DATABASE used');
$node->safe_psql('used', <<'EOF_SQL');
CREATE EXTENSION fenced_lock;
SELECT fenced_lock.admit('wallet:1', 10);
SELECT fenced_lock.admit(E'odd\tkey\\ "ü"', 70);
EOF_SQL
my $data = $node->basedir . '/data.dump';
$node->command_ok(
	[ 'pg_dump', '--data-only', '-t', 'fenced_lock.watermark', '-e', 'fenced_lock', '-f', $data, 'shop' ],
	'the marks alone: dumped');
$node->command_ok(
	[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $data, 'used' ],
	'the marks alone: restored beside others');
like(
	outcome($node, 'used', "SELECT fenced_lock.admit('wallet:1', 999)"),
	qr/^LF001: .* token 1000/,
	'of two marks the higher one counts, where it was restored');
like(
	outcome($node, 'used', q{SELECT fenced_lock.admit(E'odd\tkey\\\\ "ü"', 69)}),
	qr/^LF001: .* token 70/,
	'of two marks the higher one counts, where it was there before');

# A mark that the client was told of survives a crash, also without
# synchronous_commit: nothing of it may be written later.
$node->safe_psql('shop', <<'EOF_SQL');
SET synchronous_commit = off;
SELECT fenced_lock.admit('crash', 5);
EOF_SQL
$node->stop('immediate');
$node->start;
like(
	outcome($node, 'shop', "SELECT fenced_lock.admit('crash', 4)"),
	qr/^LF001: /,
	'a mark survives a crash under synchronous_commit = off');

# A standby admits nothing, and knows the marks when it is promoted.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('marks_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->safe_psql('shop', "SELECT fenced_lock.admit('failover', 5)");
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is( outcome($standby, 'shop', "SELECT fenced_lock.admit('failover', 5)"),
	'25006: cannot execute fenced_lock.admit() in a read-only transaction',
	'not on a standby');
$node->stop('immediate');
$standby->promote;
like(
	outcome($standby, 'shop', "SELECT fenced_lock.admit('failover', 4)"),
	qr/^LF001: /,
	'a stale token stays stale after a failover');
is(outcome($standby, 'shop', "SELECT fenced_lock.admit('failover', 6)"),
	't', 'and a new one is admitted');

$standby->stop;
done_testing();
