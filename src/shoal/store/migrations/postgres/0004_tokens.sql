-- Access tokens: whose each is and what it may do. Of the token itself only the SHA-256 is kept; `used_on` is a day (UTC).
create table tokens (
    name       text collate "C" primary key,
    digest     text collate "C" not null unique,
    scope      text not null,
    person     text not null,
    agent      text not null default '',
    created_by text not null,
    created_at bigint not null,
    expires_at bigint,
    used_on    text not null default ''
);
