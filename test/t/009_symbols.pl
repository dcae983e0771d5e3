# What the library exports: up to PostgreSQL 15 every function that is not
# static is a global symbol, and two libraries with one name for two functions
# call each other's.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
my ($symbols, $errors) =
  run_command([ 'nm', '-D', '--defined-only', "$libdir/fenced_lock.so" ]);
is($errors, '', 'nm reads the library');

my @names = map { (split)[-1] } split /\n/, $symbols;
ok((grep { $_ eq 'fenced_lock_try_acquire' } @names),
	'SQL functions are exported');

my @strangers = grep {
	!/^(?:fenced_lock_|pg_finfo_fenced_lock_|fl_|_PG_init$|Pg_magic_func$|_init$|_fini$)/
} @names;
is("@strangers", '', 'every exported name has our prefix');

done_testing();
