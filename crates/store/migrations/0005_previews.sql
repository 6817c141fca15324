-- Ports of sandboxes that are reached under addresses of their own.
create table previews (
    sandbox text not null,
    port integer not null,
    id text not null unique,
    public integer not null,
    -- A JSON list; null: any site may frame it.
    embed_origins text,
    -- The key of its tokens: another one, and no token of before holds.
    secret blob not null,
    created_at integer not null,
    primary key (sandbox, port)
) strict, without rowid;
