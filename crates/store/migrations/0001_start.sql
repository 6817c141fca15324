-- Times are milliseconds since the Unix epoch; ids are lower-case UUIDs.

-- What this database made once: the key of its hashes, the ids of its organization and owner.
create table meta (
    name text primary key,
    value blob not null
) strict, without rowid;

create table credentials (
    id text primary key,
    principal text not null,
    name text not null,
    hash blob not null unique,
    prefix text not null,
    read_only integer not null,
    account_wide integer not null,
    created_at integer not null,
    revoked_at integer
) strict;

create table sandboxes (
    id text primary key,
    credential text not null,
    name text,
    labels text not null,
    -- Secret: read into a type that never prints its values.
    env text not null,
    user text not null,
    region text not null,
    vcpu integer not null,
    memory_mib integer not null,
    disk_mib integer not null,
    cpu_floor_millis integer not null,
    cpu_reserved integer not null,
    timeout_seconds integer not null,
    on_limit text not null,
    idle_seconds integer not null,
    auto_wake integer not null,
    persistent integer not null,
    max_total_cost_micros integer,
    image text,
    snapshot text,
    secrets text,
    internet integer,
    engine text not null,
    state text not null,
    reason text,
    operation text,
    generation integer not null,
    created_at integer not null,
    ready_at integer,
    last_active_at integer,
    ends_at integer,
    ended_at integer,
    paused_at integer,
    retention_days integer,
    disk_kept integer not null,
    memory_restored integer,
    charged_micros integer not null,
    held_micros integer not null
) strict;

create index sandboxes_by_age on sandboxes (created_at, id);
create index sandboxes_alive on sandboxes (state) where state <> 'stopped';

-- Who holds a name. The primary key is what makes two racing creates one sandbox.
create table names (
    name text primary key,
    sandbox text not null unique references sandboxes (id)
) strict, without rowid;

create table deleted (
    id text primary key,
    credential text not null,
    answer text not null,
    deleted_at integer not null,
    -- The machine and its disk are gone too.
    removed integer not null
) strict;

create index deleted_unfinished on deleted (id) where removed = 0;

create table idempotency (
    scope text not null,
    key text not null,
    fingerprint blob not null,
    status integer not null,
    -- Exactly one of the two: the body to repeat, or the sandbox whose record is the answer.
    body blob,
    sandbox text,
    expires_at integer not null,
    primary key (scope, key)
) strict, without rowid;

create index idempotency_by_time on idempotency (expires_at);
