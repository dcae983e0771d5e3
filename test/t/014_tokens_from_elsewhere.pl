# Locks of a real etcd and a real Redis, with what they hand out as tokens: the
# holder whose lock has expired there is refused here, once its successor has
# been by.  What the README shows for them is run with them.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

# "make test" installs them, "make installcheck" does not.
foreach my $program (qw(etcd redis-server redis-cli))
{
	plan skip_all => "$program is not installed"
	  unless grep { -x "$_/$program" } split /:/, $ENV{PATH};
}

my @servers;    # the processes started here

END
{
	# keep the status of the test
	local $?;
	$_->kill_kill foreach @servers;
}

my $readme = slurp_file("$FindBin::RealBin/../../README.md");
my $node = new_node('elsewhere', 'fsync = off');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What a statement comes to: its result, or the error's SQLSTATE.
sub outcome
{
	my ($statement) = @_;
	my ($rc, $out, $err) =
	  $node->psql('postgres', "\\set VERBOSITY sqlstate\n$statement");

	return $rc == 0 ? $out : $err =~ s/.*?ERROR:\s+(\w+).*/$1/sr;
}

# Tries until it is true, for as long as PostgreSQL's own tests do.
sub wait_until
{
	my ($what, $code) = @_;

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $result = $code->();
		return $result if $result;
		sleep 0.1;
	}
	die "$what: waited in vain";
}

# Starts a server that ends with this test.
sub start_server
{
	my ($name, @command) = @_;
	my $log = $node->basedir . "/$name.log";

	push @servers,
	  IPC::Run::start([@command], '<', \undef, '>', $log, '2>&1');
	return;
}

# What is asked of each: the old holder's token, then, when its lock has
# expired, its successor's.
sub check_story
{
	my ($key, $lock, $wait_for_expiry) = @_;
	my ($table) = $key =~ /^(\w+):/;
	my $write = sub {
		my ($token) = @_;
		return outcome("UPDATE $table SET balance = balance - 10
			  FROM fenced_lock.admit('$key', $token) WHERE id = 1 RETURNING balance, fence");
	};

	sql("CREATE TABLE $table (id bigint PRIMARY KEY, balance int, fence bigint);
		INSERT INTO $table VALUES (1, 100);
		CREATE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON $table
			FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard_watermark('$table:{id}', 'fence')");

	my $old = $lock->();
	is(outcome("SELECT fenced_lock.admit('$key', $old)"),
		't', "$key: the holder's token is admitted");
	is($write->($old), "90|$old", "$key: the holder writes");

	$wait_for_expiry->();
	my $new = $lock->();
	ok($new > $old, "$key: the successor's token is higher ($old, $new)");
	is($write->($old), "80|$old",
		"$key: the known hole: the old holder writes while the successor has not come by");
	is(outcome("SELECT fenced_lock.admit('$key', $new)"),
		't', "$key: the successor's token is admitted");
	is($write->($old), 'LF001',
		"$key: the old holder's write is refused");
	is(outcome("UPDATE $table SET balance = 0, fence = $new"),
		'LF101', "$key: also when it shows the successor's token");
	is($write->($new), "70|$new", "$key: the successor writes");
	return $new;
}

# --- etcd: the create revision of the lock's key, by the v3 lock API ---

my $etcd = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
my $peer = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);

sub etcd
{
	my ($path, $request) = @_;
	my $response = $http->post("$etcd/v3/$path",
		{ content => encode_json($request) });

	die "$path: $response->{status} $response->{content}"
	  unless $response->{success};
	return decode_json($response->{content});
}

start_server(
	'etcd', 'etcd',
	'--data-dir' => $node->basedir . '/etcd',
	'--listen-client-urls' => $etcd,
	'--advertise-client-urls' => $etcd,
	'--listen-peer-urls' => $peer,
	'--initial-advertise-peer-urls' => $peer,
	'--initial-cluster' => "default=$peer");
wait_until('etcd starts',
	sub { $http->get("$etcd/health")->{content} =~ /"true"/ });

my $lease;

# Locks and returns the token; the lease ends after a second or two.
sub etcd_lock
{
	$lease = etcd('lease/grant', { TTL => 1 })->{ID};
	my $held = etcd('lock/lock',
		{ name => encode_base64('wallet:1', ''), lease => $lease });
	my $kvs = etcd('kv/range', { key => $held->{key} })->{kvs};
	return $kvs->[0]{create_revision};
}

my $revision = check_story(
	'etcd_wallet:1',
	\&etcd_lock,
	sub {
		wait_until('the lease ends in etcd',
			sub { (etcd('lease/timetolive', { ID => $lease })->{TTL} // 0) < 0 });
	});

# README's page on moving to etcd, with a token of etcd's in place of its own.
my ($page) = $readme =~ /^(### Moving on to etcd\n.*?)^## /ms;
ok($page =~ s/^(\\set revision) \d+$/$1 $revision/m,
	'the README says where the revision comes in');
append_to_file($node->basedir . '/moving.md', $page);
{
	local @ENV{qw(PGHOST PGPORT PGDATABASE)} =
	  ($node->host, $node->port, 'postgres');
	my ($results, $talk) = run_command(
		[ "$FindBin::RealBin/../readme", $node->basedir . '/moving.md' ]);

	unlike($results, qr/^failed/m, 'moving on to etcd, as the README shows it')
	  or diag($results, $talk);
	is(() = $results =~ /^passed/mg, () = $page =~ /^```sql$/mg,
		'all of it was run');
}
is( sql('SELECT etcd_fence, fence - 4503599627370496 FROM accounts'),
	"$revision|$revision",
	'the revision is what was stamped');

# --- Redis: a counter, raised in the script that takes the lock ---

my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $socket = "$folder/redis.sock";    # its path has a limit
my $attempts = 0;

sub redis
{
	my ($out, $err) = run_command([ 'redis-cli', '-s', $socket, @_ ]);
	return $out;
}

start_server(
	'redis', 'redis-server',
	'--port' => 0,
	'--unixsocket' => $socket,
	'--dir' => $folder,
	'--save' => '',
	'--daemonize' => 'no');
wait_until('Redis starts', sub { redis('PING') eq 'PONG' });

my ($script) = $readme =~ /^cat > lock\.lua <<'END'\n(.*?)^END$/ms;
append_to_file("$folder/lock.lua", $script);

# Locks and returns the token; empty if the lock is taken.
sub redis_lock
{
	return redis('--eval', "$folder/lock.lua",
		'lock:{wallet:1}', 'fence:{wallet:1}', ',', 'owner ' . ++$attempts,
		600_000);
}

check_story(
	'redis_wallet:1',
	\&redis_lock,
	sub {
		is(redis_lock(), '', 'Redis: the lock is taken');
		is(redis('PEXPIRE', 'lock:{wallet:1}', 1), '1', 'Redis: it is to expire');
		wait_until('the lock ends in Redis',
			sub { redis('EXISTS', 'lock:{wallet:1}') eq '0' });
	});

done_testing();
