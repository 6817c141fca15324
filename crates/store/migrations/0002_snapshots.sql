create table snapshots (
    id text primary key,
    -- Raised by one at every change.
    generation integer not null,
    credential text not null,
    source text not null,
    memory integer not null,
    -- Made for a fork alone: not shown, and removed after it.
    passing integer not null,
    name text,
    labels text not null,
    vcpu integer not null,
    memory_mib integer not null,
    disk_mib integer not null,
    cpu_floor_millis integer not null,
    cpu_reserved integer not null,
    engine text not null,
    state text not null,
    error text,
    retention_days integer,
    stored_bytes integer,
    created_at integer not null,
    ready_at integer,
    expires_at integer not null,
    deleted_at integer
) strict;

create index snapshots_by_age on snapshots (created_at, id);
create index snapshots_unfinished on snapshots (state) where state in ('capturing', 'deleting');
