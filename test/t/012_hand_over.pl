# Hand-overs of one key among 64 waiters: in order of arrival, none lost,
# whatever ends the waits of others.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = 64;
my $seed = time % 1_000_000;
my $total = 0;
my $keys = 0;

my $node = new_node('hand_over', 'fsync = off', 'max_connections = 250');
my $waiters = $node->basedir . '/waiters';

build();

# waiters.c says what it does.
sub build
{
	my ($include, $lib) =
	  map { chomp(my $dir = `pg_config $_`); $dir } '--includedir', '--libdir';
	my @options = qw(-std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror);

	system('gcc', @options, "-I$include", '-o', $waiters,
		"$FindBin::RealBin/waiters.c", "-L$lib", '-lpq') == 0
	  or die 'waiters.c does not compile; does it need libpq-dev?';
}

# A run of it: its calls, in the order of their ends, and its other lines.
sub play
{
	my ($key, $clients, $grants, @behaviour) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	my $done = IPC::Run::run([ $waiters, $key, $clients, $grants, $seed, @behaviour ],
		'>', \$out, '2>', \$err);
	my @calls;
	my %about;

	foreach (split /\n/, $out)
	{
		my %call;
		if (/^(cpu|left) (.*)/) { $about{$1} = $2; next; }
		@call{qw(client how limit outcome token expires sent ended seen)} = split / /;
		push @calls, \%call;
	}
	diag($err) if $err ne '';
	$about{done} = $done;
	return (\%about, @calls);
}

# What may end a call otherwise than by a grant.
my %early = (
	'-' => 'none',
	'cancel' => '57014',
	'statement_timeout' => '57014',
	'wait' => '55P03',
	'kill' => '57P01');

# Tokens that somebody was granted, in spite of one who had been seen in line
# before, but for the first of each: he may have stood before that one.
sub overtakings
{
	my @granted = sort { $a->{token} <=> $b->{token} } @_;
	my $found = 0;

	foreach my $i (grep { $granted[$_]{seen} >= 0 } 0 .. $#granted)
	{
		my %times;
		for (my $j = $i - 1; $j >= 0 && $granted[$j]{token} > $granted[$i]{seen}; $j--)
		{
			$found++ if $times{ $granted[$j]{client} }++;
		}
	}
	return $found;
}

# What holds for each run.
sub judge
{
	my ($what, $about, $calls, %options) = @_;
	my @granted = grep { $_->{outcome} eq 'granted' } @$calls;
	my @by_time = $options{lapses} ? sort { $a->{expires} <=> $b->{expires} } @granted : @granted;
	my @late = grep { $_->{ended} - $_->{sent} > ($_->{limit} + 5000) * 1000 } @$calls;
	my @lost = grep { $_->{outcome} ne 'granted' && $_->{outcome} ne $early{ $_->{how} } } @$calls;

	ok($about->{done}, "$what: comes to an end") or die "no use to go on";
	is(scalar(@lost), 0, "$what: each is granted the key within its wait, unless ended early")
	  or diag(join "\n", map { join ' ', %$_ } @lost[ 0 .. ($#lost < 9 ? $#lost : 9) ]);
	is(scalar(@late), 0, "$what: no wait lasts longer than asked for");
	is( join(' ', map { $_->{token} } @by_time),
		join(' ', sort { $a <=> $b } map { $_->{token} } @by_time),
		"$what: tokens rise in the order of the grants");
	is(overtakings(@granted, @{ $options{others} // [] }), 0, "$what: nobody is overtaken by one client twice");
	is($about->{left}, '0', "$what: nothing is left in pg_locks");
	$total += @granted;
	return;
}

sub new_key { return 'key ' . ++$keys . ' '; }

#
# A line that has formed is served in the order of arrival
#

foreach my $how ('behind a lease', 'after its head is killed eight times')
{
	my @behaviour = $how =~ /killed/ ? ('line', 'kill') : ('line');
	my $killed = $how =~ /killed/ ? 8 : 0;
	my ($about, @calls) = play(new_key(), $clients, 0, @behaviour);

	judge("a line $how", $about, \@calls);
	is( join(' ', map { $_->{client} } grep { $_->{outcome} eq 'granted' } @calls),
		join(' ', $killed .. $clients - 1),
		"a line $how: served in the order of arrival");
	is(scalar(grep { $_->{seen} >= 0 } @calls), $clients, "a line $how: each was seen in it");
}

#
# In the long run
#

foreach my $run (
	[ 'clients that loop', 6000, 'loop' ],
	[ 'each third call ended early', 2500, 'loop', 'cancel' ],
	[ 'leases that expire', 400, 'loop', 'expire' ],
	[ 'heads that are killed', 600, 'loop', 'kill' ])
{
	my ($what, $grants, @behaviour) = @$run;
	my ($about, @calls) = play(new_key(), $clients, $grants, @behaviour);
	my %ended;

	judge("$what (seed $seed)", $about, \@calls, lapses => $what =~ /expire|killed/);
	$ended{ $_->{how} }++ foreach grep { $_->{outcome} ne 'granted' } @calls;
	foreach my $how ($what =~ /early/ ? qw(cancel statement_timeout wait) : $what =~ /killed/ ? 'kill' : ())
	{
		cmp_ok($ended{$how} // 0, '>', 5, "$what: some are ended by $how");
	}
}

# The one who loops does so in the server, and keeps its tokens.
{
	my $key = new_key();
	$node->safe_psql('postgres', "CREATE TABLE stop (); SELECT fenced_lock.acquire('${key}0', '1 ms')");
	my $script = qq{DO \$\$
		DECLARE
			tokens bigint[];
			t bigint;
			o uuid;
		BEGIN
			LOOP
				SELECT fencing_token, owner_token INTO t, o FROM fenced_lock.acquire('${key}0', wait => '60 s');
				tokens := tokens || t;
				PERFORM fenced_lock.release('${key}0', o);
				COMMIT;
				EXIT WHEN EXISTS (SELECT FROM stop);
			END LOOP;
			RAISE NOTICE 'tokens %', tokens;
		END \$\$};
	my ($out, $err) = ('', '');
	my $looping = IPC::Run::start(
		[ 'psql', '-XAtq', '-h', $node->host, '-p', $node->port, '-c', $script, 'postgres' ],
		'<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my $rises = "SELECT last_value FROM fenced_lock.token_seq";
	my $before = $node->safe_psql('postgres', $rises);
	$node->poll_query_until('postgres', "SELECT last_value > $before + 100 FROM fenced_lock.token_seq");

	my ($about, @calls) = play($key, $clients, 500, 'loop', 'pause');
	$node->safe_psql('postgres', 'INSERT INTO stop DEFAULT VALUES');
	$looping->finish;
	my @looped = $err =~ /tokens \{(.*)\}/ ? split(/,/, $1) : ();
	my ($from, $to) = @calls ? @calls[ 0, -1 ] : ();

	cmp_ok(scalar(grep { $_ > $from->{token} && $_ < $to->{token} } @looped),
		'>', 2, 'one who loops without a pause: has its turns');
	judge('one who loops without a pause', $about, \@calls,
		others => [ map { { client => 'loop', token => $_, seen => -1 } } @looped ]);
	$total += @looped;
}
cmp_ok($total, '>=', 10_000, "10,000 hand-overs in all ($total)");

#
# Asleep: a hundred in one line and a hundred in ten
#

{
	my $what = 'two hundred waiters asleep for 10 s';
	my ($about, @calls) = play(new_key(), 200, 0, 'line', 'idle', 'lines');

	cmp_ok($about->{cpu} // 1000, '<', 0.1, "$what use less than 0.1 s of the CPU");
	is(scalar(grep { $_->{outcome} eq 'granted' } @calls), 200, "$what are all served");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 17996 AND 17998'),
	'0', 'no lock is left of all that');

$node->stop;
done_testing();
