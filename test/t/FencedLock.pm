# What several of these tests need: a server with the extension, a grant, the
# server's log, sessions, waiters and pgbench in the background.

package FencedLock;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  acquire
  close_session
  error_of
  kill_server
  log_position
  log_since
  new_node
  seconds_to_end
  start_pgbench
  start_waiter
);

# A started server with fenced_lock in database postgres. Nothing writes WAL
# or flushes it on its own soon, so that a test sees what its own calls do.
sub new_node
{
	my ($name, @settings) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init;
	$node->append_conf(
		'postgresql.conf', join "\n",
		'autovacuum = off',
		'checkpoint_timeout = 1h',
		'wal_writer_delay = 10s',
		@settings, '');
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION fenced_lock');
	return $node;
}

# Fencing token and owner token of a grant, which commits at once.
sub acquire
{
	my ($node, $key, $ttl, $db) = @_;
	my $granted = $node->safe_psql(
		$db // 'postgres',
		"SELECT fencing_token, owner_token
		   FROM fenced_lock.try_acquire('$key', '$ttl') WHERE acquired");

	die "\"$key\" was not granted" if $granted eq '';
	return split /\|/, $granted;
}

# The server's log from a position on.
sub log_position
{
	my ($node) = @_;
	return -s $node->logfile;
}

sub log_since
{
	my ($node, $position) = @_;
	return slurp_file($node->logfile, $position);
}

# The error of statements that fail, as "SQLSTATE: message"; '' if they do not.
sub error_of
{
	my ($node, $sql, $db, @params) = @_;
	my (undef, undef, $err) = $node->psql(
		$db // 'postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose', @params ]);

	return $err =~ /ERROR:\s+(\w{5}: [^\n]*)/ ? $1 : '';
}

# kill -9 of the postmaster and of all its children; returns once all are gone.
sub kill_server
{
	my ($node) = @_;
	my @pids = split /\n/,
	  $node->safe_psql('postgres',
		'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');

	$node->kill9;
	kill 9, @pids;
	foreach my $attempt (1 .. 1800)
	{
		last if !grep { kill 0, $_ } @pids;
		select undef, undef, undef, 0.1;
	}
	return;
}

# Ends a background session, also one whose server has gone.
sub close_session
{
	my ($session) = @_;
	eval { $session->quit; };
	return;
}

# A session that waits, in the background.
sub start_waiter
{
	my ($node, $statements, %options) = @_;
	my ($out, $err) = ('', '');
	my $place = $options{place} // 1;
	my $db = $options{db} // 'postgres';
	my $file = $node->basedir . '/' . ++our $scripts . '.sql';
	append_to_file($file, "SET application_name = 'waiter'; $statements");
	my $waiter = {
		out => \$out,
		err => \$err,
		handle => IPC::Run::start(
			[ 'psql', '-XAtq', '-h', $node->host, '-p', $node->port, '-f', $file, $db ],
			'<', \undef,
			'>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
	};

	# It has a place in the line, and nothing changes about it any more.
	$node->poll_query_until($db,
		"SELECT count(*) = 1 FROM fenced_lock.waiters
		  WHERE key = '$options{key}' AND place = $place")
	  or die "no waiter in place $place for \"$options{key}\"";
	$waiter->{pid} = $node->safe_psql($db,
		"SELECT pid FROM fenced_lock.waiters
		  WHERE key = '$options{key}' AND place = $place");
	sleep(0.2) unless $options{hurry};
	return $waiter;
}

# Seconds until it has ended.
sub seconds_to_end
{
	my ($waiter) = @_;
	my $since = time;

	$waiter->{handle}->finish;
	return time - $since;
}

# Starts pgbench in the background; the caller must call finish().
sub start_pgbench
{
	my ($node, $script, @options) = @_;
	my $file = $node->basedir . '/' . ++our $scripts . '.pgbench';
	my ($out, $err) = ('', '');

	append_to_file($file, $script);
	return IPC::Run::start(
		[
			'pgbench', '-n', '-h', $node->host, '-p', $node->port,
			'-f', $file, @options, 'postgres'
		],
		'<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

1;
