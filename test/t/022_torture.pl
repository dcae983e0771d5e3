# Eight clients acquire, renew, release, pin and write over 50 keys, while the
# postmaster is killed with -9 again and again. No token is seen twice, each
# key's rise across all crashes, no write is lost that was to be durable, and
# every wallet is what its log says.
#
# FENCED_LOCK_KILLS: how many times, 30 if not given.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $kills = $ENV{FENCED_LOCK_KILLS} || 30;
my $clients = 8;
my $keys = 50;

my $node = new_node('torture', 'fsync = on', 'log_statement = none', 'log_min_messages = log');
my $folder = $node->basedir;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What a holder writes rests on what it has read under the lock, so that two
# holders of a key would lose a write, and clash in the log.
sql(qq{
	CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL, version int NOT NULL, fence bigint);
	INSERT INTO wallets SELECT i, 0, 0 FROM generate_series(1, $keys) i;
	CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON wallets
		FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}', 'fence');
	CREATE TABLE log (id int, version int, token bigint, amount int, write text UNIQUE, PRIMARY KEY (id, version));
});

# One turn of a client. What it prints is what it has seen:
#   granted KEY TOKEN OWNER MICROSECONDS (committed) or drawn TOKEN (rolled back)
#   begin WRITE, pin SQLSTATE, update SQLSTATE, end WRITE SQLSTATES SETTING
#   renewed or lost; released TOKEN; purged ROWS
append_to_file("$folder/turn.sql", q{
SELECT :n + 1 AS n, 1 + floor(random() * }. $keys . q{)::int AS id, ceil(random() * 10)::int AS amount,
       (ARRAY['on', 'off', 'local', 'remote_apply'])[1 + floor(random() * 4)::int] AS setting,
       (ARRAY['40 ms', '300 ms', '8 s'])[1 + floor(random() * 3)::int] AS ttl,
       random() < 0.1 AS rolls_back, random() < 0.3 AS renews, random() < 0.2 AS stalls,
       random() < 0.8 AS pins, random() < 0.8 AS releases, random() < 0.3 AS inside,
       random() < 0.05 AS purges, random() < 0.2 AS lingers \gset
SELECT 'write ' || :'client' || ' ' || :n AS write, gen_random_uuid() AS owner \gset
SET synchronous_commit = :setting;
\if :purges
SELECT 'purged ' || fenced_lock.purge('0');
\endif
\if :rolls_back
BEGIN;
SELECT coalesce(fencing_token::text, '') AS drawn FROM fenced_lock.try_acquire('wallet:' || :id) \gset
\echo drawn :drawn
ROLLBACK;
\else
SELECT acquired, fencing_token AS token,
       (extract(epoch FROM expires_at - :'ttl'::interval) * 1000000)::bigint AS at
  FROM fenced_lock.try_acquire('wallet:' || :id, :'ttl', :'owner', wait => '20 ms') \gset
\if :acquired
\echo granted :id :token :owner :at
\ir use.sql
\else
\echo refused
\endif
\endif
});
append_to_file("$folder/use.sql", q{
SELECT balance, version FROM wallets WHERE id = :id \gset
\if :stalls
SELECT pg_sleep(0.1) \g /dev/null
\endif
\if :renews
SELECT CASE WHEN fenced_lock.renew('wallet:' || :id, :'owner') IS NULL THEN 'lost' ELSE 'renewed' END AS renewed \gset
\echo :renewed
\endif
\echo begin :write
BEGIN;
\if :pins
SELECT fenced_lock.pin('wallet:' || :id, :token) \g /dev/null
\echo pin :SQLSTATE
\endif
UPDATE wallets SET balance = :balance + :amount, version = :version + 1 WHERE id = :id;
\echo update :SQLSTATE
\if :lingers
SELECT pg_sleep(0.05) \g /dev/null
\endif
INSERT INTO log VALUES (:id, :version + 1, :token, :amount, :'write');
\set logged :SQLSTATE
\set released f
\if :releases
\if :inside
SELECT fenced_lock.release('wallet:' || :id, :'owner') AS released \gset
\endif
\endif
COMMIT;
\echo end :write :logged :SQLSTATE :setting
\if :releases
\if :inside
\else
SELECT fenced_lock.release('wallet:' || :id, :'owner') AS released \gset
\endif
\if :released
\echo released :token
\endif
\endif
});

# What a client holds when the server dies, with the next server it goes on with.
my @held;

sub start_client
{
	my ($round, $n) = @_;
	my $file = "$folder/client.$round.$n";
	my $go_on = '';

	if ($held[$n])
	{
		my ($id, $token, $owner) = @{ $held[$n] };
		$go_on = "\\set id $id\n\\set token $token\n\\set owner $owner\n\\set amount 1\n"
		  . "\\set setting on\n\\set write 'write $round.$n again'\n"
		  . "\\set stalls off\n\\set renews on\n\\set pins on\n\\set releases on\n\\set inside off\n\\set lingers off\n\\ir use.sql\n";
	}
	append_to_file("$file.sql",
		"SET application_name = 'client';\n\\set VERBOSITY sqlstate\n\\set client $round.$n\n\\set n 0\n"
		  . $go_on . "\\ir turn.sql\n" x 2_000);
	return {
		out => "$file.out",
		handle => IPC::Run::start(
			[ 'psql', '-XAtq', '-f', "$file.sql", '-d', $node->connstr('postgres') ],
			'<', \undef, '>', "$file.out", '2>', "$file.err")
	};
}

# What all clients have seen.
my %count = map { $_ => 0 } 'grants', 'take-overs', 'renewals', 'releases',
  'refused tries', 'rollbacks', 'rows purged', 'kills that hit an open transaction',
  'writes begun', 'writes acknowledged', 'holders that went on after a crash', 'LF001', 'LF002', 'LF101';
my (%seen, %grants, %released, %begun, %refused, %durable);
my ($twice, $not_above, $highest, $odd) = ('', '', 0, '');

# Reads what a client has printed; returns whether it was in a transaction, and
# its highest token.
sub read_client
{
	my ($n, $text, $who) = @_;
	my ($open, $top) = (0, 0);
	my $saw = sub {
		my ($token) = @_;
		$twice .= "$who: $token\n" if $seen{$token}++;
		$not_above .= "$who: $token, after $highest\n" if $token <= $highest;
		$top = $token if $token > $top;
	};

	foreach (split /\n/, $text)
	{
		if (/^granted (\d+) (\d+) (\S+) (\d+)$/)
		{
			$count{grants}++;
			$saw->($2);
			push @{ $grants{$1} }, [ $4, $2 ];
			$held[$n] = [ $1, $2, $3 ];
		}
		elsif (/^drawn (\d+)$/) { $saw->($1); $count{rollbacks}++; }
		elsif (/^drawn $|^refused$/) { $count{'refused tries'}++; }
		elsif (/^renewed$/) { $count{renewals}++; }
		elsif (/^lost$/) { }
		elsif (/^purged (\d+)$/) { $count{'rows purged'} += $1; }
		elsif (/^begin (.*)$/) { $open = 1; $begun{$1} = 1; $count{'writes begun'}++; }
		elsif (my ($state) = /^(?:pin|update) (\w+)$/)
		{
			$count{$state}++ if exists $count{$state};
			$odd .= "$_\n" if $state !~ /^(?:00000|25P02|LF001|LF002|LF101)$/;
		}
		elsif (my ($write, $logged, $ended, $setting) = /^end (.*) (\w+) (\w+) (\w+)$/)
		{
			$open = 0;
			$odd .= "$_\n" if $logged !~ /^(?:00000|25P02)$/ || $ended ne '00000';
			if ($logged ne '00000') { $refused{$write} = 1; next; }
			$count{'writes acknowledged'}++;
			$count{'holders that went on after a crash'}++ if $write =~ /again$/;
			$durable{$write} = 1 if $setting ne 'off';
		}
		elsif (/^released (\d+)$/) { $released{$1} = 1; $count{releases}++; $held[$n] = undef; }
		else { $odd .= "$_\n"; }
	}
	return ($open, $top);
}

foreach my $round (1 .. $kills)
{
	my @running = map { start_client($round, $_) } 1 .. $clients;

	$node->poll_query_until('postgres',
		"SELECT count(*) = $clients FROM pg_stat_activity WHERE application_name = 'client'")
	  or die 'the clients did not start';
	select undef, undef, undef, 0.1 + rand 0.8;
	kill_server($node);
	$_->{handle}->finish foreach @running;

	my ($open, $top) = (0, $highest);
	foreach my $n (1 .. $clients)
	{
		my ($was_open, $last) = read_client($n, slurp_file($running[ $n - 1 ]{out}), "client $round.$n");
		$open ||= $was_open;
		$top = $last if $last > $top;
	}
	$count{'kills that hit an open transaction'}++ if $open;
	$highest = $top;
	$node->start;
}
my ($last) = acquire($node, 'the last', '1 h');

# Per key, in the order of grants
my $falling = 0;
foreach my $id (keys %grants)
{
	my @in_order = sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] } @{ $grants{$id} };

	foreach my $i (1 .. $#in_order)
	{
		my ($before, $token) = ($in_order[ $i - 1 ][1], $in_order[$i][1]);
		$falling++ if $token <= $before;
		$count{'take-overs'}++ if !$released{$before};
	}
}

is($odd, '', 'the clients saw nothing but what they may see');
is($twice, '', 'no token was seen twice');
is($not_above, '', 'each token is above all that were seen before the last crash');
is($falling, 0, 'the tokens of each key rise in the order of its grants');
cmp_ok($last, '>', $highest, 'and the next one is above them all');

my %logged = map { $_ => 1 } split /\n/, sql('SELECT write FROM log');
is(join(' ', grep { !$logged{$_} } keys %durable),
	'', 'no acknowledged write was lost, save under synchronous_commit = off');
is(join(' ', grep { $refused{$_} } keys %logged),
	'', 'no refused write was done');
is(join(' ', grep { !$begun{$_} } keys %logged),
	'', 'no write was done that nobody began');
is( sql('SELECT w.id FROM wallets w LEFT JOIN log l USING (id) GROUP BY w.id
		 HAVING w.balance <> coalesce(sum(l.amount), 0) OR w.version <> count(l.version)
		     OR w.version <> coalesce(max(l.version), 0)
		     OR w.fence IS DISTINCT FROM (array_agg(l.token ORDER BY l.version DESC))[1]'),
	'',
	'every wallet is what its log says, stamp included');
is( sql('SELECT count(*) FROM (
		   SELECT token, lag(token) OVER (PARTITION BY id ORDER BY version) AS before FROM log) l
		  WHERE token < before'),
	'0',
	'no write was done under a token lower than that of the write before');

note "$count{$_} $_" foreach sort keys %count;
note scalar(keys %logged) . ' writes in the log after ' . "$kills kills";
cmp_ok($count{$_}, '>', 0, "of all that, some: $_") foreach sort keys %count;

$node->stop;
done_testing();
