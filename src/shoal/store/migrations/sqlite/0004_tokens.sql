-- Access tokens: whose each is and what it may do. Of the token itself only the SHA-256 is kept; `used_on` is a day (UTC).
create table tokens (
    name       text primary key,
    digest     text not null unique,
    scope      text not null,
    person     text not null,
    agent      text not null default '',
    created_by text not null,
    created_at integer not null,
    expires_at integer,
    used_on    text not null default ''
) without rowid;
