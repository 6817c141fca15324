-- A browser's way into one sandbox. Only a hash of its token is kept.
create table sessions (
    id text primary key,
    sandbox text not null,
    -- The key that made it, with which it ends.
    credential text not null references credentials (id),
    name text,
    -- A JSON list of exact origins.
    origins text not null,
    hash blob not null unique,
    created_at integer not null,
    expires_at integer not null,
    revoked_at integer
) strict;

create index sessions_by_sandbox on sessions (sandbox, created_at);
