# Copies of a database: recovered to a point in time, started from a base
# backup, made from a template, dumped and restored in all the usual ways.
# Tokens go on above every stamped row and every token that was ever seen,
# guards go on refusing, leases stay where they were.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $origin = new_node('origin', 'wal_level = replica',
	'max_wal_senders = 10', 'log_statement = none');
$origin->enable_archiving;
$origin->restart;

my $highest = 0;    # of all tokens that were seen

sub sql { return $_[0]->safe_psql($_[2] // 'app', $_[1]); }

sub saw
{
	foreach (@_) { $highest = $_ if $_ > $highest; }
}

# Runs a program as a role; (status, stdout, stderr).
sub run_as
{
	my ($node, $db, $role, $program, @args) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[ $program, '-d', $node->connstr($db), '-U', $role, @args ],
		'<', \undef, '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

sub errors { return grep { /ERROR|FATAL|error:/ } split /\n/, $_[0]; }

#
# A database of a plain owner, in which a superuser has made the extension
#

my $superuser = sql($origin, 'SELECT session_user', 'postgres');
my @roles = (
	'CREATE ROLE plain LOGIN',
	'CREATE ROLE worker LOGIN');
sql($origin, $_, 'postgres') foreach @roles, 'CREATE DATABASE app OWNER plain';
sql($origin, "CREATE EXTENSION fenced_lock; SELECT fenced_lock.allow('worker')");
is( (run_as($origin, 'app', 'plain', 'psql', '-Xqc', q{
		CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL, fence bigint);
		INSERT INTO wallets SELECT i, 100 FROM generate_series(1, 9) i;
		CREATE TRIGGER zz_fence BEFORE INSERT OR UPDATE OR DELETE ON wallets
			FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
		CREATE TRIGGER zz_fence_truncate BEFORE TRUNCATE ON wallets
			FOR EACH STATEMENT EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
		GRANT ALL ON wallets TO worker;
	}))[0], 0, 'a plain owner guards a table');

# A worker takes a key and writes its row; returns the token.
sub work
{
	my ($node, $id, $db) = @_;
	my $file = $node->basedir . '/' . ++our $scripts . '.sql';

	append_to_file($file, qq{
SELECT fencing_token, owner_token FROM fenced_lock.try_acquire('wallet:$id', '1 h') \\gset
BEGIN;
SELECT fenced_lock.pin('wallet:$id', :fencing_token) \\g /dev/null
UPDATE wallets SET balance = balance - 1 WHERE id = $id;
COMMIT;
SELECT fenced_lock.release('wallet:$id', :'owner_token') \\g /dev/null
SELECT fence FROM wallets WHERE id = $id AND fence = :fencing_token;
});
	my ($status, $token, $err) = run_as($node, $db // 'app', 'worker',
		'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $file);
	chomp $token;
	note $err if $err ne '';
	return $status == 0 ? $token : -1;
}

# What must be true of every copy of database app.
sub check_copy
{
	my ($node, $what, %options) = @_;
	my $db = $options{db} // 'app';

	saw(sql($node, 'SELECT max(fence) FROM wallets', $db));
	like(
		error_of($node, 'UPDATE wallets SET balance = 0 WHERE id = 3', $db),
		qr/^LF101: /, "$what: the guard refuses whoever has not pinned");
	like(error_of($node, 'TRUNCATE wallets', $db),
		qr/^55000: /, "$what: and TRUNCATE");
	foreach my $id (1, 3)
	{
		my $token = work($node, $id, $db);
		cmp_ok($token, '>', $highest,
			"$what: a stamped row is written under a token above all seen, row $id");
		saw($token);
	}
}

saw(map { work($origin, $_) } 1 .. 5);
my ($held, $held_owner) = acquire($origin, 'a lease that is held', '1 h', 'app');

#
# Copies of the files
#

$origin->backup('base');
saw(map { work($origin, $_) } 1 .. 5);
my $time = sql($origin, 'SELECT clock_timestamp()');
sql($origin, 'SELECT pg_sleep(0.01)');
my $at_that_time = sql($origin, 'SELECT last_value FROM fenced_lock.token_seq');
saw(map { work($origin, 1 + $_ % 5) } 1 .. 8);
saw(split /\n/, sql($origin, join '',
		("SELECT fencing_token FROM fenced_lock.try_acquire('after that time', '1 ms', wait => '1 min');") x 60));
my $lost_rows = sql($origin, 'COPY wallets TO stdout');
$origin->backup('later');
my $segment = sql($origin, "SELECT pg_walfile_name(pg_create_restore_point('the end'))");
sql($origin, 'SELECT pg_switch_wal()');
$origin->poll_query_until('postgres',
	"SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver")
  or die 'the log was not archived';

my $recovered = PostgreSQL::Test::Cluster->new('recovered');
$recovered->init_from_backup($origin, 'base', has_restoring => 1, standby => 0);
$recovered->append_conf('postgresql.conf', "recovery_target_time = '$time'
recovery_target_action = promote
archive_mode = off");
$recovered->start;
$recovered->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'the recovery did not end';
cmp_ok(sql($recovered, 'SELECT last_value FROM fenced_lock.token_seq'),
	'<', $highest - 33, 'recovered to a point in time: the last tokens are not known');
is(sql($recovered, "SELECT count(*) FROM fenced_lock.lock_row WHERE key = 'after that time'"),
	'0', 'recovered to a point in time: nor are the last grants');
# Rows that were saved from what was lost, with their stamps
sql($recovered, "BEGIN; ALTER TABLE wallets DISABLE TRIGGER USER; DELETE FROM wallets;
COPY wallets FROM stdin;\n$lost_rows\n\\.\nALTER TABLE wallets ENABLE TRIGGER USER; COMMIT;");
is( sql($recovered, "SELECT fenced_lock.pin('a lease that is held', $held)"),
	't', 'recovered to a point in time: a lease of before is held');
check_copy($recovered, 'recovered to a point in time');
$recovered->stop;

my $started = PostgreSQL::Test::Cluster->new('started');
$started->init_from_backup($origin, 'later', standby => 0);
$started->append_conf('postgresql.conf', 'archive_mode = off');
# The original goes on meanwhile.
saw(split /\n/, sql($origin, join '',
		("SELECT fencing_token FROM fenced_lock.try_acquire('meanwhile', '1 ms', wait => '1 min');") x 60));
$started->start;
is( sql($started, "SELECT fenced_lock.renew('a lease that is held', '$held_owner') IS NOT NULL"),
	't', 'a base backup, just started: a lease is held');
check_copy($started, 'a base backup, just started');
my @of_copy = map { work($started, 2) } 1 .. 3;
my @of_origin = map { work($origin, 2) } 1 .. 3;
my %both = map { $_ => 1 } @of_copy, @of_origin;
is(scalar(keys %both), 6, 'a base backup, just started: it and the original share no token');
saw(keys %both);
$started->stop;

#
# A template
#

sql($origin, 'CREATE DATABASE clone TEMPLATE app', 'postgres');
check_copy($origin, 'a clone of the database', db => 'clone');

# A row of the clone comes back, with a stamp above all tokens of the original,
# which was moved to the clock earlier.
my $stamp = work($origin, 4, 'clone');
my $row = sql($origin, 'COPY (SELECT * FROM wallets WHERE id = 4) TO stdout', 'clone');
sql($origin, "BEGIN; ALTER TABLE wallets DISABLE TRIGGER USER; DELETE FROM wallets WHERE id = 4;
COPY wallets FROM stdin;\n$row\n\\.\nALTER TABLE wallets ENABLE TRIGGER USER; COMMIT;");
my ($token) = acquire($origin, 'wallet:4', '1 h', 'app');
my $refused = "BEGIN; SELECT fenced_lock.pin('wallet:4', $token); UPDATE wallets SET balance = 0 WHERE id = 4; COMMIT";
like(error_of($origin, $refused, 'app'),
	qr/^LF001: .*(?:$token.*$stamp|$stamp.*$token)/,
	'a stamp from elsewhere: the refusal names both numbers');
like(($origin->psql('app', $refused))[2], qr/HINT:.*raise_fence/,
	'a stamp from elsewhere: and what to do');
sql($origin, "SELECT fenced_lock.raise_fence($stamp); SELECT fenced_lock.force_release('wallet:4', $token)");
cmp_ok($token = work($origin, 4), '>', $stamp,
	'a stamp from elsewhere: after raise_fence() the row is written');
saw($token);
sql($origin, 'DROP DATABASE clone', 'postgres');

#
# Dumps, taken by the plain owner
#

my $dump = $origin->basedir . '/dump';
my %format = (
	plain => [],
	clean => [ '--clean', '--if-exists' ],
	schema => ['--schema-only'],
	data => [ '--data-only', '--disable-triggers' ],
	custom => ['-Fc']);
foreach my $format (sort keys %format)
{
	my ($status, $out, $err) = run_as($origin, 'app', 'plain', 'pg_dump',
		@{ $format{$format} }, '-f', "$dump.$format");
	is("$status $err", '0 ', "a dump ($format) by a plain owner");
}
my $text = slurp_file("$dump.plain");
unlike($text, qr/a lease that is held|hash_seed|owner_digest/,
	'leases and secrets are not in the dump');
like($text, qr/setval\('fenced_lock\.token_seq', \d+/, 'the last token is');
my $rows = sql($origin, 'SELECT * FROM wallets ORDER BY id');

# Tokens that the dump has not heard of.
saw(map { work($origin, 1) } 1 .. 3);

my $other = new_node('other', 'log_statement = none');
sql($other, $_, 'postgres') foreach @roles;

sub new_database
{
	my ($node, $name, @statements) = @_;

	sql($node, "CREATE DATABASE $name OWNER plain", 'postgres');
	sql($node, $_, $name) foreach @statements;
}

foreach my $node ($other, $origin)
{
	my $where = $node == $origin ? 'in the same cluster' : 'in a new cluster';

	foreach my $format ('plain', 'custom')
	{
		my $db = "from_$format";
		my $what = "a dump ($format) restored $where";

		new_database($node, $db);
		my ($status, $out, $err) = $format eq 'plain'
		  ? run_as($node, $db, $superuser, 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', "$dump.plain")
		  : run_as($node, $db, $superuser, 'pg_restore', '-j', '2', "$dump.custom");
		is("$status $err", '0 ', "$what by a superuser: no error");
		is(sql($node, 'SELECT * FROM wallets ORDER BY id', $db),
			$rows, "$what: the rows are there");
		is(sql($node, 'SELECT count(*) FROM fenced_lock.lock_row', $db),
			'0', "$what: no leases are");
		check_copy($node, $what, db => $db);
	}
}

# Data alone, into a database that has issued tokens since.
{
	my $what = 'a dump of the data';

	new_database($other, 'from_data');
	my ($status, $out, $err) = run_as($other, 'from_data', $superuser, 'psql',
		'-Xq', '-v', 'ON_ERROR_STOP=1', '-f', "$dump.schema");
	is("$status $err", '0 ', 'a dump of the schema restored: no error');
	saw((acquire($other, "before $_", '1 ms', 'from_data'))[0]) foreach 1 .. 3;
	($status, $out, $err) = run_as($other, 'from_data', $superuser, 'psql',
		'-Xq', '-v', 'ON_ERROR_STOP=1', '-f', "$dump.data");
	is("$status $err", '0 ', "$what: no error, no guard trips it");
	cmp_ok(sql($other, 'SELECT last_value FROM fenced_lock.token_seq', 'from_data'),
		'<', $highest, "$what has set the sequence back");
	is(sql($other, 'SELECT * FROM wallets ORDER BY id', 'from_data'),
		$rows, "$what: the rows are there");
	my $position = log_position($other);
	check_copy($other, $what, db => 'from_data');
	is( scalar(() = log_since($other, $position) =~ /after their sequence was set back/g),
		1, "$what: the log tells that the sequence was moved forward");
}

# By the plain owner, where a superuser has made the extension.
foreach my $format ('plain', 'custom')
{
	my $db = "owner_$format";
	my $what = "a dump ($format) restored by a plain owner";

	new_database($other, $db, 'CREATE EXTENSION fenced_lock', "SELECT fenced_lock.allow('worker')");
	saw((acquire($other, 'before', '1 h', $db))[0]);
	my ($status, $out, $err) = $format eq 'plain'
	  ? run_as($other, $db, 'plain', 'psql', '-Xq', '-f', "$dump.plain")
	  : run_as($other, $db, 'plain', 'pg_restore', "$dump.custom");
	my @errors = errors($err);
	cmp_ok(scalar(@errors), '>', 0, "$what: there are errors");
	is( join("\n", grep { !/must be owner of extension fenced_lock|permission denied for (?:sequence|function|view|schema|table|type)|errors ignored on restore|while PROCESSING TOC/ } @errors),
		'', "$what: they are of what he may not do");
	is(sql($other, 'SELECT * FROM wallets ORDER BY id', $db), $rows, "$what: the rows are there");
	is(sql($other, "SELECT acquired FROM fenced_lock.try_acquire('before')", $db),
		'f', "$what: a lease is held as before");
	check_copy($other, $what, db => $db);
}

# In place, over a database in use, under live connections of a pool.
{
	my $what = 'a dump restored in place';
	my @clients;

	foreach my $n (1 .. 2)
	{
		my $out = $origin->basedir . "/live.$n";
		append_to_file("$out.sql",
			"SELECT fencing_token FROM fenced_lock.try_acquire('live $n', '1 ms', wait => '1 min');\n" x 100_000);
		push @clients, {
			out => $out,
			handle => IPC::Run::start(
				[ 'psql', '-XAtq', '-f', "$out.sql", '-d', $origin->connstr('app') ],
				'<', \undef, '>', $out, '2>', "$out.err")
		};
	}
	my $wait_for_more = sub {
		my @sizes = map { -s $_->{out} // 0 } @clients;
		foreach my $attempt (1 .. 1800)
		{
			return if !grep { (-s $clients[$_]{out} // 0) < $sizes[$_] + 1_000 } 0 .. $#clients;
			select undef, undef, undef, 0.1;
		}
		die 'the clients are not granted anything';
	};
	$wait_for_more->();
	my $pooled = $origin->background_psql('app', on_error_stop => 0);
	$pooled->query("SELECT fencing_token FROM fenced_lock.try_acquire('pooled', '1 ms')");

	foreach my $again (1, 2)
	{
		my ($status, $out, $err) = run_as($origin, 'app', $superuser, 'psql',
			'-Xq', '-v', 'ON_ERROR_STOP=1', '-f', "$dump.clean");
		is("$status $err", '0 ', "$what, time $again: no error");
		$wait_for_more->();
	}
	# no longer paced by the restore
	$_->{handle}->kill_kill foreach @clients;

	my ($falling, $twice, $count, %issued) = (0, 0, 0);
	foreach my $client (@clients)
	{
		my $last = 0;
		foreach my $token (slurp_file($client->{out}) =~ /^(\d+)\n/mg)
		{
			$falling++ if $token <= $last;
			$twice++ if $issued{$token}++;
			$last = $token;
			$count++;
		}
		saw($last);
	}
	note "$count tokens seen by live connections";
	is($falling, 0, "$what: the tokens that a live connection saw rose");
	is($twice, 0, "$what: no token was seen twice");
	my $next = $pooled->query("SELECT fencing_token FROM fenced_lock.try_acquire('pooled', '1 ms')");
	cmp_ok($next, '>', $highest, "$what: a pooled connection goes on above them all");
	saw($next);
	close_session($pooled);
	is(sql($origin, 'SELECT * FROM wallets ORDER BY id'), $rows, "$what: the rows are those of the dump");
	is( sql($origin, "SELECT count(*) FROM fenced_lock.lock_row WHERE key = 'a lease that is held'"),
		'0', "$what: leases are gone");
	check_copy($origin, $what);
}

#
# Keys that come and go: neither purge nor a hand sets the tokens back, and the
# table stays small.
#

{
	my $statements = "SET fenced_lock.durable_grants = off; SET synchronous_commit = off;
		CREATE TEMP TABLE issued (n int, token bigint);
		DO \$\$
		DECLARE l fenced_lock.lease;
		BEGIN
			FOR i IN 1 .. 100 LOOP
				l := fenced_lock.try_acquire('again', '1 h');
				INSERT INTO issued VALUES (i, l.fencing_token);
				PERFORM fenced_lock.release('again', l.owner_token);
				IF i % 10 = 0 THEN
					DELETE FROM fenced_lock.lock_row WHERE key = 'again';
				ELSIF fenced_lock.purge('0') < 1 THEN
					RAISE 'not purged';
				END IF;
				COMMIT;
			END LOOP;
		END \$\$;
		SELECT count(*) FROM issued;
		SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM issued) i WHERE token <= before;";
	is(sql($origin, $statements), "100\n0",
		'a key that is purged, or deleted by hand, a hundred times: its tokens rise');
}
{
	my @sizes;

	sql($origin, 'VACUUM fenced_lock.lock_row');
	foreach my $round (1 .. 20)
	{
		sql($origin, "SELECT count(*) FROM generate_series(1, 1000) i, fenced_lock.try_acquire('once $round ' || i, '1 ms')");
		sql($origin, "SELECT fenced_lock.purge('0')");
		sql($origin, 'VACUUM fenced_lock.lock_row');
		push @sizes, sql($origin, "SELECT pg_total_relation_size('fenced_lock.lock_row')");
	}
	note "sizes: @sizes";
	cmp_ok($sizes[19], '<', 2 * $sizes[4],
		'twenty thousand keys that come and go: purge keeps the table small');
}

$_->stop foreach $origin, $other;
done_testing();
