# The first grant after each start of the server moves the tokens to the clock,
# so that no relative of this server, clone or restored copy, has issued them.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('start', 'fsync = off');

sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# The last token that was drawn.
sub last_value
{
	my ($db) = @_;
	return sql('SELECT last_value FROM fenced_lock.token_seq', $db);
}

# The clock as tokens show it: microseconds since 2000.
sub clock
{
	my ($time) = @_;
	return sql(
		"SELECT ((extract(epoch FROM $time)
		          - extract(epoch FROM timestamptz '2000-01-01 UTC'))
		         * 1000000)::bigint");
}

# The lines that tell of a move of the tokens.
sub moves
{
	my ($position) = @_;
	return grep { /LOG:.*fencing tokens of this database go on from/ }
	  split /\n/, log_since($node, $position);
}

sub restart
{
	my $position = log_position($node);

	$node->restart;
	return $position;
}

# Sixteen clients, of a role that owns nothing, ask for the first grant since
# the start of the server all at once.

sql("CREATE ROLE app LOGIN;
	SELECT fenced_lock.allow('app');
	CREATE TABLE seen (round int, token bigint);
	GRANT ALL ON seen TO app");
my $last = 0;
foreach my $round (1 .. 3)
{
	my $position = restart();

	# They line up for an advisory lock; once it is released they all go.
	my $starter = $node->background_psql('postgres');
	$starter->query_safe('SELECT pg_advisory_lock(1)');
	my $clients = start_pgbench(
		$node, "
		SELECT pg_advisory_lock_shared(1);
		SELECT fencing_token AS token
		  FROM fenced_lock.try_acquire('$round:' || :client_id) \\gset
		INSERT INTO seen VALUES ($round, :token);
		", '-U', 'app', '-c', 16, '-j', 2, '-t', 1);
	$node->poll_query_until(
		'postgres', "SELECT count(*) = 16 FROM pg_locks
		              WHERE locktype = 'advisory' AND NOT granted")
	  or die 'the clients did not line up';
	$starter->query_safe('SELECT pg_advisory_unlock(1)');
	ok($clients->finish, "start $round: sixteen clients are granted at once");
	close_session($starter);

	my ($count, $lowest, $highest) = split /\|/,
	  sql("SELECT count(DISTINCT token), min(token), max(token)
	         FROM seen WHERE round = $round");
	is($count, 16, "start $round: each has a token of its own");
	cmp_ok($lowest, '>', $last, "start $round: tokens are above all before");
	cmp_ok($lowest, '>', clock('pg_postmaster_start_time()'),
		"start $round: tokens are above the clock at the start");
	cmp_ok($highest, '<', clock('clock_timestamp()'),
		"start $round: tokens are not above the present clock");
	is(scalar(moves($position)),
		1, "start $round: the tokens were moved once, and LOG tells");

	acquire($node, "later $round", '30 s');
	is(scalar(moves($position)), 1,
		"start $round: a later grant does not move them");
	$last = last_value();
}

# The clock does not help: it is behind the last token.

my $far = '1152921504606846976';    # 2^60
sql("SELECT setval('fenced_lock.token_seq', $far)");
my ($token) = acquire($node, 'same start', '30 s');
is($token, $far + 1, 'without a start tokens go on by one');

foreach my $again (1, 2)
{
	my $before = last_value();
	my $position = restart();
	($token) = acquire($node, "ahead $again", '30 s');
	cmp_ok($token, '>', $before + 2**32,
		"tokens ahead of the clock go on 2^32 above the last one, start $again"
	);
	cmp_ok($token, '<=', $before + 2**32 + 33,
		"tokens ahead of the clock go on no further than that, start $again");
	my @lines = moves($position);
	is(scalar(@lines), 1, "LOG tells once of that move, start $again");
	my ($logged) = $lines[0] =~ /the last one, (\d+), is ahead of the clock/;
	ok( defined $logged && $logged >= $before && $logged <= $before + 32,
		"LOG tells why, start $again: up to 32 more were logged");
}

# DROP and CREATE EXTENSION in a session that has cached all there is to cache,
# with another such session looking on.

sql('CREATE DATABASE dropped');
sql('CREATE EXTENSION fenced_lock', 'dropped');
my ($dropper, $onlooker) =
  map { $node->background_psql('dropped', on_error_stop => 0) } 1, 2;

sub cycle
{
	my ($session) = @_;
	my $granted = $session->query(
		"SELECT fencing_token, owner_token
		   FROM fenced_lock.try_acquire('cached')");
	my ($token, $owner) = split /\|/, $granted;
	my $works = $session->query(
		"SELECT fenced_lock.renew('cached', '$owner') IS NOT NULL
		        AND fenced_lock.pin('cached', $token)
		        AND fenced_lock.release('cached', '$owner')");

	return $works eq 't' ? $token : -1;
}

my @tokens = map { cycle($_) } $dropper, $onlooker;
foreach my $again (1, 2)
{
	$dropper->query_safe('DROP EXTENSION fenced_lock');
	$dropper->query_safe('CREATE EXTENSION fenced_lock');
	push @tokens, map { cycle($_) } $dropper, $onlooker, $dropper;
}
cmp_ok($tokens[0], '>', 0, 'tokens in a session that will drop the extension');
foreach my $i (1 .. $#tokens)
{
	cmp_ok($tokens[$i], '>', $tokens[ $i - 1 ],
		"tokens rise across DROP and CREATE EXTENSION, grant $i");
}
close_session($_) foreach $dropper, $onlooker;

# A clone of a database goes on above its template, whose leases it keeps.

acquire($node, "of the template $_", '10 min', 'dropped') foreach 1 .. 5;
my $of_template = last_value('dropped');
my $position = log_position($node);
sql('CREATE DATABASE clone TEMPLATE dropped');
($token) = acquire($node, 'of the clone', '30 s', 'clone');
cmp_ok($token, '>', $of_template,
	"tokens of a cloned database are above its template's");
is(scalar(moves($position)), 1, "the clone's tokens were moved to the clock");
my ($of_original) = acquire($node, 'of the template', '30 s', 'dropped');
cmp_ok($of_original, '>', $of_template, 'the template goes on as it was');
cmp_ok($of_original, '<', $token, 'and has not met its clone');
is( sql("SELECT acquired FROM fenced_lock.try_acquire('of the template 1')",
		'clone'),
	'f',
	'a lease of the template is held in the clone');

$node->stop;
done_testing();
