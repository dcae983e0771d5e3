-- mode_fenced.sql: what mode (c) needs beside the schema: the extension, a
-- guard on each table whose rows stand or fall with the lock of a wallet, and
-- the one grant that an application needs.

CREATE EXTENSION fenced_lock;

SELECT fenced_lock.protect('wallets', 'wallet:{id}', on_insert => true);
SELECT fenced_lock.protect('charges', 'wallet:{wallet_id}', on_insert => true);

SELECT fenced_lock.allow('demo_app');
