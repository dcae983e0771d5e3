# Behind PgBouncer in transaction mode: waiters can occupy the whole pool, so
# that the holder does not get in. That costs it time or its lease, and never
# lets a write of two holders pass.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $pool = 5;
my $node = new_node('pooler', 'fsync = off');
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $user = sql('SELECT current_user');
my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin'
  or die 'there is no pgbouncer';

sub sql { return $node->safe_psql('postgres', $_[0]); }

append_to_file("$dir/pgbouncer.ini", <<END);
[databases]
* = host=@{[ $node->host ]} port=@{[ $node->port ]} user=$user
[pgbouncer]
listen_port = 6432
unix_socket_dir = $dir
auth_type = any
admin_users = $user
pool_mode = transaction
default_pool_size = $pool
logfile = $dir/log
END
my ($said, $bouncer) = ('', undef);
$bouncer = IPC::Run::start([ $program, '-q', "$dir/pgbouncer.ini" ], '<', \undef, '>&', \$said);

# Statements of a client, through the pool.
sub start_client
{
	my (@statements) = @_;
	my ($out, $err) = ('', '');
	my $file = $node->basedir . '/' . ++our $scripts . '.sql';

	append_to_file($file, join("\n", @statements, ''));
	return {
		out => \$out,
		err => \$err,
		handle => IPC::Run::start(
			[ 'psql', '-XAtq', '-h', $dir, '-p', 6432, '-U', $user, '-v', 'VERBOSITY=verbose', '-f', $file, 'postgres' ],
			'<', \undef, '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
	};
}

sub answer
{
	my ($client) = @_;

	$client->{handle}->finish;
	return ${ $client->{out} };
}

# How many clients wait for a connection of the pool.
sub waiting_clients
{
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'psql', '-XAtq', '-F', ' ', '-h', $dir, '-p', 6432, '-U', $user, '-c', 'SHOW POOLS', 'pgbouncer' ],
		'<', \undef, '>', \$out, '2>', \$err);
	return $out =~ /^postgres \S+ \d+ (\d+)/m ? $1 : -1;
}

# A holds the wallet's key, as many clients as the pool has connections wait
# for it, and then A wants to renew.
sub fill_pool
{
	my ($key, $last_words) = @_;
	my ($token, $owner) = split /\|/, answer(start_client(
		"SELECT fencing_token, owner_token FROM fenced_lock.acquire('$key', '10 min');"));
	chomp $owner;
	my $write = "UPDATE wallets SET balance = balance - 1 FROM fenced_lock.pin('$key', %s) WHERE key = '$key'";
	my @waiters = map {
		start_client(
			"SELECT format(\$\$$write RETURNING balance\$\$, fencing_token), format('SELECT fenced_lock.release(%L, %L)', '$key', owner_token)
			   FROM fenced_lock.acquire('$key', wait => '30 s') \\gexec")
	} 1 .. $pool;
	$node->poll_query_until('postgres', "SELECT count(*) = $pool FROM fenced_lock.waiters") or die 'no waiters';
	my $a = start_client(
		"SELECT fenced_lock.renew('$key', '$owner') IS NOT NULL;",
		sprintf($write, $token) . ' RETURNING balance;',
		"SELECT fenced_lock.release('$key', '$owner');");

	foreach my $attempt (1 .. 600)
	{
		last if waiting_clients() == 1;
		select undef, undef, undef, 0.1;
	}
	is(waiting_clients(), 1, "$key: the holder waits for a connection");
	is(sql("SELECT count(*) FROM fenced_lock.waiters"), $pool, "$key: while waiters have them all");
	return ($a, $owner, @waiters);
}

sub is_served
{
	my ($key, @waiters) = @_;
	is( join(' ', sort { $a <=> $b } map { answer($_) =~ /^(\d+)\nt\n$/ ? $1 : -1 } @waiters),
		join(' ', 100 - @waiters .. 99), "$key: the waiters are served, each balance is charged once")
	  or diag(map { "${ $_->{out} }${ $_->{err} }" } @waiters);
	is(sql("SELECT balance FROM wallets WHERE key = '$key'"), 100 - @waiters, "$key: what the wallet holds is right");
	return;
}

foreach my $attempt (1 .. 100)
{
	last if -S "$dir/.s.PGSQL.6432";
	select undef, undef, undef, 0.1;
}
sql(q{CREATE TABLE wallets (key text PRIMARY KEY, balance int);
	INSERT INTO wallets VALUES ('lost', 100), ('kept', 101);
	CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
	  FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('{key}')});

# The lease runs out meanwhile (a renewal past the pool makes that quick).
{
	my ($a, $owner, @waiters) = fill_pool('lost');

	sql("SELECT fenced_lock.renew('lost', '$owner', '1 ms')");
	is(answer($a), "f\nf\n", 'lost: the holder learns that its lease is lost, from renew and from release');
	like(${ $a->{err} }, qr/ERROR:  LF00[12]: .*WARNING:  LF002: /s, "lost: its late write is refused");
	is_served('lost', @waiters);
}

# A wait ends, and lets it in.
{
	my ($a, $owner, @waiters) = fill_pool('kept');
	my $pid = sql('SELECT pid FROM fenced_lock.waiters WHERE place = 3');

	sql("SELECT pg_cancel_backend($pid)");
	is(answer($a), "t\n100\nt\n", 'kept: once a wait has ended the holder renews, writes and releases');
	my @ended = grep { answer($_) eq '' } @waiters;
	is(scalar(@ended), 1, 'kept: one wait was ended');
	is_served('kept', grep { ${ $_->{out} } ne '' } @waiters);
}

is(sql('SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 17996 AND 17998'),
	'0', 'nothing is left in pg_locks on the connections of the pool');
cmp_ok(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"),
	'==', $pool, 'which are all still there');

$bouncer->signal('TERM');
eval { $bouncer->finish };
$node->stop;
done_testing();
