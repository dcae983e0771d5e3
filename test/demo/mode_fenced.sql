-- mode_fenced.sql: what mode (c) needs beside the schema: the extension, a
-- guard on each table whose rows stand or fall with the lock of a wallet, and
-- the one grant that an application needs.

CREATE EXTENSION fenced_lock;

CREATE TRIGGER wallet_guard BEFORE INSERT OR UPDATE OR DELETE ON wallets
	FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{id}');
CREATE TRIGGER charge_guard BEFORE INSERT OR UPDATE OR DELETE ON charges
	FOR EACH ROW EXECUTE FUNCTION fenced_lock.guard('wallet:{wallet_id}');

SELECT fenced_lock.allow('demo_app');
