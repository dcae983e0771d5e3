# Standbys: what they answer while they are standbys, and what becomes of locks
# and tokens when they are promoted, with and without the tail of the log.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FencedLock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $primary = new_node('primary', 'wal_level = replica',
	'max_wal_senders = 10', 'wal_sender_timeout = 0');

sub sql { return $_[0]->safe_psql('postgres', $_[1]); }

sub new_standby
{
	my ($name) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->start;
	return $node;
}

# From now on the standby hears nothing more.
sub cut_off
{
	my ($node) = @_;

	sql($node, "ALTER SYSTEM SET primary_conninfo = ''");
	$node->reload;
	$node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or die 'the receiver did not stop';
}

# Tokens of so many grants of some keys, released or not.
sub grants
{
	my ($node, $count) = @_;
	return split /\n/,
	  sql($node,
		join '', map {
			"SELECT fencing_token FROM fenced_lock.try_acquire('lag ' || $_ % 20, '1 ms', wait => '1 min');"
		} 1 .. $count);
}

sub highest { return (sort { $b <=> $a } @_)[0]; }

$primary->backup('base');
my @laggards = map { new_standby($_) } 'first', 'second';
my $synchronous = new_standby('synchronous');

#
# On a hot standby
#

my ($token, $owner) = acquire($primary, 'held', '1 h');
$primary->wait_for_catchup($_) foreach @laggards, $synchronous;

# Each call, on a key that is held, with a wait that would be noticed.
my %writing = (
	try_acquire => "'held', wait => '100 s'",
	acquire => "'held', wait => '100 s'",
	renew => "'held', '$owner'",
	release => "'held', '$owner'",
	force_release => "'held', $token, '100 s'",
	purge => '',
	pin => "'held', $token",
	pin_all => "'{held}', $token",
	admit => "'held', 1",
	protect => "'pg_class', '{oid}'",
	unprotect => "'pg_class'",
	raise_fence => '1',
	allow => 'session_user::regrole',
	disallow => 'session_user::regrole',
	take_back_rights => '');
my %reading = map { $_ => 1 } 'lock_id', 'lease_end', 'guard', 'guard_watermark', 'guard_definition';

# None is forgotten.
is( join(' ', grep { !$writing{$_} && !$reading{$_} && $_ !~ /^(purge|take_back_rights)$/ }
		  split /\n/,
		sql($primary,
			"SELECT DISTINCT proname FROM pg_proc
			  WHERE pronamespace = 'fenced_lock'::regnamespace")),
	'',
	'on a standby: all functions are tried');

foreach my $function (sort keys %writing)
{
	my $since = time;

	like(
		error_of($laggards[0], "SELECT fenced_lock.$function($writing{$function})"),
		qr/^25006: cannot execute fenced_lock\.$function\(\) /,
		"on a standby: $function() is refused by its name");
	cmp_ok(time - $since, '<', 10, "on a standby: $function() does not wait");
}
my $held = "SELECT key, fencing_token, lifetime, role, pid, expires_at, pinned_by FROM fenced_lock.locks";
is(sql($laggards[0], $held), sql($primary, $held),
	'on a standby: view locks shows what the primary shows');
is(sql($laggards[0], 'SELECT count(*) FROM fenced_lock.waiters'),
	'0', 'on a standby: view waiters can be read');
is( sql($laggards[0], "SELECT fenced_lock.lock_id('held')"),
	sql($primary, "SELECT fenced_lock.lock_id('held')"),
	'on a standby: a key has the same lock');

#
# A synchronous standby: what was answered is there.
#

sql($primary, 'ALTER SYSTEM SET synchronous_standby_names = synchronous');
sql($primary, 'ALTER SYSTEM SET synchronous_commit = remote_apply');
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT sync_state = 'sync' FROM pg_stat_replication
	  WHERE application_name = 'synchronous'")
  or die 'the standby is not synchronous';
is(sql($primary, 'SHOW synchronous_commit'), 'remote_apply',
	'synchronous standby: remote_apply');

sql($primary, "SELECT fenced_lock.try_acquire('case 39: ' || i, '1 h') FROM generate_series(1, 10) i");

# Clients are granted keys, one after the other, and know of it; the others of
# the primary's standbys hear of the first of them only.
sub start_clients
{
	my ($node) = @_;
	my @clients;

	foreach my $n (1 .. 3)
	{
		my $out = $node->basedir . "/granted.$n";
		my $file = "$out.sql";

		append_to_file($file, join '', map {
			"SELECT key, fencing_token, owner_token
			   FROM (VALUES ('sync $n.$_')) v(key), fenced_lock.try_acquire(key, '1 h');\n"
		} 1 .. 5_000);
		push @clients, {
			out => $out,
			handle => IPC::Run::start(
				[ 'psql', '-XAtq', '-f', $file, '-d', $node->connstr('postgres') ],
				'<', \undef, '>', $out, '2>', '/dev/null')
		};
	}
	return @clients;
}

sub wait_for_output
{
	my ($bytes, @clients) = @_;
	foreach my $attempt (1 .. 1800)
	{
		return if !grep { (-s $_->{out} // 0) < $bytes } @clients;
		select undef, undef, undef, 0.1;
	}
	die 'the clients are not granted anything';
}

my @clients = start_clients($primary);
wait_for_output(500, @clients);
cut_off($_) foreach @laggards;
wait_for_output(2_000 + (-s $_->{out}), $_) foreach @clients;

# In the midst of it all
my @before = grants($primary, 60);
sql($_, 'SELECT pg_wal_replay_pause()') foreach @laggards;
kill_server($primary);
$_->{handle}->finish foreach @clients;
$synchronous->promote;

my @granted = map { slurp_file($_->{out}) =~ /^(.*\|.*\|[-0-9a-f]{36})\n/mg } @clients;
my %seen = map { (split /\|/)[1] => 1 } @granted;
$seen{$_} = 1 foreach $token, @before;
my $highest = highest(keys %seen);

sql($synchronous, 'CREATE TABLE granted (key text, token bigint, owner uuid)');
sql($synchronous, "COPY granted FROM stdin DELIMITER '|';\n" . join("\n", @granted) . "\n\\.\n");
cmp_ok(scalar(@granted), '>', 50, 'synchronous standby: clients were granted keys');
is( sql($synchronous,
		'SELECT count(*) FROM granted g WHERE NOT EXISTS
		   (SELECT FROM fenced_lock.locks l WHERE l.key = g.key AND l.fencing_token = g.token)'),
	'0',
	'synchronous standby, promoted: each grant that was answered is there');
is( sql($synchronous,
		'SELECT count(*) FROM granted g, fenced_lock.try_acquire(g.key) t WHERE t.acquired'),
	'0',
	'synchronous standby, promoted: nobody else is granted their keys');
is( sql($synchronous,
		"SELECT count(*) FROM granted g
		  WHERE fenced_lock.pin(g.key, g.token)
		    AND fenced_lock.renew(g.key, g.owner, '30 min') > clock_timestamp() + '29 min'
		    AND fenced_lock.pin(g.key, g.token)"),
	scalar(@granted),
	'synchronous standby, promoted: their holders pin, renew and go on');
is( sql($synchronous, "SELECT count(*) FROM fenced_lock.locks WHERE key LIKE 'case 39: %'"),
	'10', 'a promoted standby: the locks are held');
my ($first) = acquire($synchronous, 'promoted', '1 h');
cmp_ok($first, '>', $highest,
	'synchronous standby, promoted: tokens are above all before');
$highest = highest($first, grants($synchronous, 5));

#
# Standbys that lag, promoted one after the other
#

foreach my $laggard (@laggards)
{
	my $name = $laggard->name;

	# A session of before the promotion, which has loaded and looked up all.
	my $session = $laggard->background_psql('postgres', on_error_stop => 0);
	$session->query("SELECT fenced_lock.try_acquire('k'); SELECT count(*) FROM fenced_lock.locks");
	$session->{stderr} = '';

	$laggard->promote;
	my $lost = grep {
		sql($laggard, "SELECT count(*) FROM fenced_lock.lock_row WHERE fencing_token >= $_") eq '0'
	} @before;
	cmp_ok($lost, '>=', 50, "$name: it lags by 50 grants at least");
	cmp_ok(sql($laggard, 'SELECT last_value FROM fenced_lock.token_seq'),
		'<', $before[0], "$name: its sequence has not heard of them");

	my $next = $session->query("SELECT fencing_token FROM fenced_lock.try_acquire('promoted', '1 h')");
	cmp_ok($next, '>', $highest,
		"$name: the first token is above all of the old primary and of its other standbys");
	close_session($session);
	my @more = grants($laggard, 40);
	cmp_ok((sort { $a <=> $b } @more)[0], '>', $next, "$name: tokens go on rising");
	$highest = highest(@more);

	is( sql($laggard, "SELECT fenced_lock.renew('held', '$owner') IS NOT NULL AND fenced_lock.pin('held', $token)"),
		't', "$name: a holder that it had heard of goes on");

	# One that it had not heard of has lost its lock, and its token is dead.
	my ($key, $unheard, $secret) = split /\|/, (grep { /^sync 1\./ } @granted)[-1];
	is(sql($laggard, "SELECT fenced_lock.renew('$key', '$secret') IS NULL"),
		't', "$name: a holder that it had not heard of cannot renew");
	like(
		error_of($laggard, "SELECT fenced_lock.pin('$key', $unheard)"),
		qr/^LF002: /, "$name: its token is refused");
	my ($successor) = acquire($laggard, $key, '1 h');
	like(
		error_of($laggard, "SELECT fenced_lock.pin('$key', $unheard)"),
		qr/^LF001: .*token is $successor$/, "$name: and by its successor's too");
}

#
# An administrator has made the table unlogged: a crash empties it, tokens
# rise all the same, and those of before are refused.
#

my ($node) = @laggards;
sql($node, 'ALTER TABLE fenced_lock.lock_row SET UNLOGGED');
my ($lost) = acquire($node, 'unlogged', '1 h');
kill_server($node);
$node->start;
is(sql($node, 'SELECT count(*) FROM fenced_lock.lock_row'),
	'0', 'an unlogged table is empty after a crash');
like(error_of($node, "SELECT fenced_lock.pin('unlogged', $lost)"),
	qr/^LF002: /, 'an unlogged table: a token of before is refused');
my ($after) = acquire($node, 'unlogged', '1 h');
cmp_ok($after, '>', $lost, 'an unlogged table: tokens rise all the same');

$_->stop foreach @laggards, $synchronous;
done_testing();
