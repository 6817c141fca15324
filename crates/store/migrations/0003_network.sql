-- What a sandbox may reach: the rules as JSON, their number, and when they last changed (null: never).
-- Sandboxes of before had no way out and were never asked whether they want one: they keep none.
alter table sandboxes add column network text not null default '{"internet":false,"allow":[],"deny":[],"connect":[]}';
alter table sandboxes add column network_version integer not null default 1;
alter table sandboxes add column network_updated_at integer;
alter table sandboxes drop column internet;
