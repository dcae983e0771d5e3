# A sequence that is not logged yet, or never: the draw of a token must neither
# wait for its log nor go on without.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('minimal');
$node->init;
$node->append_conf('postgresql.conf', <<'EOF_CONF');
wal_level = minimal
max_wal_senders = 0
statement_timeout = 60s
EOF_CONF
$node->start;

# Under wal_level = minimal what a transaction has made is logged at its end.
is( $node->safe_psql('postgres', <<'EOF_SQL'),
BEGIN;
CREATE EXTENSION fenced_lock;
SELECT acquired FROM fenced_lock.try_acquire('first', '10 min');
SELECT acquired FROM fenced_lock.try_acquire('second', '10 min');
COMMIT;
EOF_SQL
	"t\nt",
	'tokens are drawn in the transaction that makes the extension');
is( $node->safe_psql('postgres',
		"SELECT acquired FROM fenced_lock.try_acquire('third', '10 min')"),
	't',
	'and after it');
$node->stop('immediate');
$node->start;
is( $node->safe_psql('postgres', <<'EOF_SQL'),
SELECT count(*) FROM fenced_lock.locks;
SELECT l.fencing_token > max(r.fencing_token)
  FROM fenced_lock.lock_row r, fenced_lock.try_acquire('fourth') l GROUP BY l.fencing_token;
EOF_SQL
	"3\nt",
	'a crash takes back neither leases nor tokens');

$node->safe_psql('postgres',
	'ALTER SEQUENCE fenced_lock.token_seq SET UNLOGGED; CHECKPOINT');
my (undef, undef, $err) = $node->psql('postgres',
	"SELECT acquired FROM fenced_lock.try_acquire('fifth')");
like(
	$err,
	qr/sequence "fenced_lock.token_seq" is unlogged/,
	'an unlogged sequence issues no tokens');

done_testing();
