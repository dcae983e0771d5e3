# Which transactions wait for the disk: the flushes of WAL, counted.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('durability', 'fsync = on',
	'wal_sync_method = fdatasync', 'log_statement = none',
	'max_prepared_transactions = 2');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# 18 counts flushes where it counts all I/O.
my $flushes =
  $node->pg_version >= 18
  ? q{SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'}
  : 'SELECT wal_sync FROM pg_stat_wal';

# The flushes of some statements, run in one session. A session's counts are
# added to the server's at the end of a transaction if forced.
sub flushes
{
	my (@statements) = @_;
	my $report = 'SELECT pg_stat_force_next_flush();';
	my $out = sql(join "\n", $report, $flushes . ';',
		'\o ' . $node->basedir . '/out',
		@statements, '\o', $report, $flushes . ';');

	$out =~ s/^\s+|\s+$//g;
	my @counts = split /\s+/, $out;
	die "unexpected output: $out" if @counts != 2;
	return $counts[1] - $counts[0];
}

# Statements with KEY and OWNER, for a number of keys.
my $series = 0;

sub for_keys
{
	my ($count, $statements) = @_;
	my @all;

	$series++;
	foreach my $i (1 .. $count)
	{
		my $one = $statements;
		$one =~ s/KEY/'$series $i'/g;
		$one =~ s/OWNER/md5('$series $i')::uuid/g;
		push @all, $one;
	}
	return @all;
}

# The flushes of a transaction for each of a number of keys that are held.
sub flushes_with_held_keys
{
	my ($count, $ttl, $statements) = @_;
	my @statements = for_keys($count, $statements);

	sql("SELECT fenced_lock.try_acquire('$series ' || i, '$ttl',
	                                    md5('$series ' || i)::uuid)
	       FROM generate_series(1, $count) i");
	return flushes(@statements);
}

sub held_keys
{
	return sql(
		"SELECT count(*) FROM fenced_lock.locks WHERE key ^@ '$series '");
}

# Grants.

my $grant = 'SELECT fenced_lock.try_acquire(KEY, NULL, OWNER);';
my $n = 320;

sql($grant =~ s/KEY|OWNER/$& eq 'KEY' ? "'first'" : 'NULL'/gre);
foreach my $commit ('on', 'off')
{
	my $count = flushes("SET synchronous_commit = $commit;",
		for_keys($n, $grant));
	cmp_ok($count, '>=', $n,
		"grants under synchronous_commit = $commit: each waits for the disk");
	cmp_ok($count, '<=', 1.2 * $n,
		"grants under synchronous_commit = $commit: hardly more than once");
}

my $count = flushes(
	'SET synchronous_commit = off;',
	'SET fenced_lock.durable_grants = off;',
	for_keys($n, $grant));
cmp_ok($count, '>=', int($n / 33),
	'grants without durable_grants: each batch of tokens waits for the disk');
cmp_ok($count, '<=', $n / 10,
	'grants without durable_grants: nothing else does');

$count = flushes(
	'SET fenced_lock.durable_grants = off;', for_keys(64, $grant));
cmp_ok($count, '>=', 64,
	'grants without durable_grants follow synchronous_commit = on');

# Renewals.

$n = 64;
my $renew = 'SELECT fenced_lock.renew(KEY, OWNER);';
$count = flushes_with_held_keys($n, '10 min',
	"SET synchronous_commit = off; $renew");
cmp_ok($count, '>=', $n, 'renewals wait for the disk');
$count = flushes_with_held_keys($n, '10 min',
	"SET synchronous_commit = off; SET fenced_lock.durable_grants = off; $renew"
);
cmp_ok($count, '<=', $n / 4, 'renewals without durable_grants do not wait');

# Cycles of acquire and release.

my $release = 'SELECT fenced_lock.release(KEY, OWNER);';
$n = 160;
$count = flushes(for_keys($n, $grant . $release));
cmp_ok($count, '>=', $n, 'cycles of acquire and release: the grant waits');
cmp_ok($count, '<=', 1.2 * $n,
	'cycles of acquire and release: the release adds no flush');
is(held_keys(), 0, 'cycles of acquire and release: all keys are free');

# Which releases wait and which do not.

sql('CREATE TABLE work (key text, note text);
	CREATE TABLE deferred (key text);
	CREATE FUNCTION write_late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO work VALUES (NEW.key, NULL);
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION write_late();
	CREATE FUNCTION release_late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM fenced_lock.release(NEW.key, md5(NEW.key)::uuid);
		RETURN NULL;
	END $$;
	CREATE UNLOGGED TABLE unlogged (key text);
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON unlogged
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION release_late()');

my $write = 'INSERT INTO work VALUES (KEY, NULL);';
my $other = q{SELECT fenced_lock.release('and ' || KEY, OWNER);};
my $also = q{SELECT fenced_lock.try_acquire('and ' || KEY, NULL, OWNER);};

# The same without a flush of its own.
my $both = "SET synchronous_commit = off;
	SET fenced_lock.durable_grants = off;
	$also
	RESET synchronous_commit;";

# A table to drop, made without a flush of its own.
my $make_table = q{SET synchronous_commit = off;
	DO $$ BEGIN EXECUTE format('CREATE TABLE %I ()', KEY); END $$;
	RESET synchronous_commit;};
my $drop_table = q{DO $$ BEGIN EXECUTE format('DROP TABLE %I', KEY); END $$;};

# [ what, ttl, the transaction ]
my @waiting = (
	[
		'a release and a write in a CTE beside it', '30 s',
		"WITH w AS (INSERT INTO work VALUES (KEY, NULL)) SELECT fenced_lock.release(KEY, OWNER);"
	],
	[
		'a release after a write in a CTE', '30 s',
		"WITH w AS (INSERT INTO work VALUES (KEY, NULL) RETURNING key) SELECT fenced_lock.release(key, OWNER) FROM w;"
	],
	[
		'a release, NOTIFY and a write', '30 s',
		"BEGIN; $release SELECT pg_notify('channel', KEY); $write COMMIT;"
	],
	[
		'a release before DROP TABLE', '30 s',
		"$make_table BEGIN; $release $drop_table COMMIT;"
	],
	[
		'a release after DROP TABLE', '30 s',
		"$make_table BEGIN; $drop_table $release COMMIT;"
	],
	[
		'a release and PREPARE', '30 s',
		"BEGIN; $release PREPARE TRANSACTION KEY; SET synchronous_commit = off; COMMIT PREPARED KEY; RESET synchronous_commit;"
	],
	[
		'a release, a write and COMMIT PREPARED', '30 s',
		"SET synchronous_commit = off; BEGIN; $release $write PREPARE TRANSACTION KEY; RESET synchronous_commit; COMMIT PREPARED KEY;"
	],
	(
		map {
			[
				"a release under SET LOCAL synchronous_commit = $_", '30 s',
				"BEGIN; SET LOCAL synchronous_commit = $_; $release COMMIT;"
			], [
				"a release and a write under synchronous_commit = $_", '30 s',
				"SET synchronous_commit = $_; BEGIN; $write $release COMMIT;"
			]
		} 'on', 'local', 'remote_write', 'remote_apply'),
	[ 'a release after a write', '30 s', "BEGIN; $write $release COMMIT;" ],
	[ 'a release before a write', '30 s', "BEGIN; $release $write COMMIT;" ],
	[ 'a release between writes', '30 s', "BEGIN; $write $release $write COMMIT;" ],
	[
		'a release and a write in one statement', '30 s',
		'INSERT INTO work SELECT KEY, fenced_lock.release(KEY, OWNER);'
	],
	[
		'a release before a write of a deferred trigger', '30 s',
		"BEGIN; INSERT INTO deferred VALUES (KEY); $release COMMIT;"
	],
	[
		'a release after a write of a subtransaction', '30 s',
		"BEGIN; SAVEPOINT s; $write RELEASE s; $release COMMIT;"
	],
	[
		'a release before a write of a subtransaction', '30 s',
		"BEGIN; $release SAVEPOINT s; $write RELEASE s; COMMIT;"
	],
	[
		'a release in a subtransaction before a write', '30 s',
		"BEGIN; SAVEPOINT s; $release RELEASE s; $write COMMIT;"
	],
	[
		'a write between releases', '30 s',
		"$both BEGIN; $release $write $other COMMIT;"
	],
	[ 'a release before a grant', '30 s', "BEGIN; $release $also COMMIT;" ],
	[ 'a release after a grant', '30 s', "BEGIN; $also $release COMMIT;" ],
	[
		'a release before a message to logical decoding', '30 s',
		"BEGIN; $release SELECT pg_logical_emit_message(true, 'to', KEY); COMMIT;"
	],
	[ 'a release with more than a minute left', '10 min', $release ],
	[
		'a release after one with more than a minute left', '10 min',
		"$both BEGIN; $release $other COMMIT;"
	],
	[
		'a release before one with more than a minute left', '10 min',
		"$both BEGIN; $other $release COMMIT;"
	],
	[
		'a release before SET LOCAL synchronous_commit', '30 s',
		"BEGIN; $release SET LOCAL synchronous_commit = on; COMMIT;"
	],
);
my @not_waiting = (
	[ 'a release alone', '30 s', $release ],
	[ 'a release alone in a block', '30 s', "BEGIN; $release COMMIT;" ],
	[
		'a release alone in a subtransaction', '30 s',
		"BEGIN; SAVEPOINT s; $release RELEASE s; COMMIT;"
	],
	[
		'a release under SET LOCAL synchronous_commit = off', '30 s',
		"BEGIN; SET LOCAL synchronous_commit = off; $release COMMIT;"
	],
	[
		'a release and NOTIFY, which a crash undoes anyway', '30 s',
		"BEGIN; $release SELECT pg_notify('channel', KEY); COMMIT;"
	],
	[
		'a release in a deferred trigger', '30 s',
		'INSERT INTO unlogged VALUES (KEY);'
	],
	[
		'two releases in a transaction', '30 s',
		"$both BEGIN; $release $other COMMIT;"
	],
	[
		'a release after a query', '30 s',
		"BEGIN; SELECT count(*) FROM work; $release COMMIT;"
	],
);

$n = 48;
foreach my $case (@waiting)
{
	my ($what, $ttl, $statements) = @$case;
	$count = flushes_with_held_keys($n, $ttl, $statements);
	cmp_ok($count, '>=', $n, "$what: waits for the disk");
	is(held_keys(), 0, "$what: the key is free");
}
foreach my $case (@not_waiting)
{
	my ($what, $ttl, $statements) = @$case;
	$count = flushes_with_held_keys($n, $ttl, $statements);
	cmp_ok($count, '<=', $n / 4, "$what: does not wait for the disk");
	is(held_keys(), 0, "$what: the key is free");
}

# The session's own setting.

foreach my $setting ('on', 'local', 'remote_write', 'remote_apply', 'off')
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my ($statements) = for_keys(
			1,
			"SET synchronous_commit = $setting;
			SELECT fenced_lock.try_acquire(KEY, NULL, OWNER) \\gset
			BEGIN;
			SELECT fenced_lock.release(KEY, OWNER) AS released \\gset
			$end;
			SHOW synchronous_commit;");
		is(sql($statements), $setting,
			"synchronous_commit is $setting after a release and $end as before"
		);
	}
}
my ($statements) = for_keys(
	1, "SELECT fenced_lock.try_acquire(KEY, NULL, OWNER) \\gset
	SELECT fenced_lock.release(KEY, OWNER) AS released \\gset
	SHOW synchronous_commit;");
is(sql($statements), 'on',
	'synchronous_commit is what it was after a release of its own');

# A crash that takes back a release: the lease runs to its end, and nothing
# else has happened. Whether the release is lost is up to the server's WAL
# writer, which looks every ten seconds.

my $lost = 0;
foreach my $try (1 .. 10)
{
	$node->restart;
	my $row = "SELECT fencing_token, owner_digest, expires_at FROM fenced_lock.lock_row WHERE key = 'lost $try'";
	my ($token, $owner) = acquire($node, "lost $try", '10 s');
	sql("INSERT INTO work VALUES ('lost $try', 'durable')");
	my $before = sql($row);
	is(sql("SELECT fenced_lock.release('lost $try', '$owner')"), 't', "crash $try: released");
	kill_server($node);
	$node->start;

	is(sql("SELECT count(*) FROM work WHERE key = 'lost $try'"),
		'1', "crash $try: a write of before the release is there");
	next if sql($row) ne $before;

	$lost = 1;
	my ($end) = $before =~ /([^|]*)$/;
	ok( $node->poll_query_until('postgres', "SELECT acquired FROM fenced_lock.try_acquire('lost $try')"),
		'a release is lost: the key is granted in the end');
	is( sql("SELECT acquired_at >= '$end' AND fencing_token > $token FROM fenced_lock.lock_row WHERE key = 'lost $try'"),
		't', "a release is lost: at the end of the lease as it was, under a higher token");
	last;
}
ok($lost, 'a release was lost in a crash');

$node->stop;
done_testing();
