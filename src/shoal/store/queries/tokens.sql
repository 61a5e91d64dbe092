-- name: token_insert
-- Store an access token. Does nothing if the name exists.
insert into tokens (name, digest, scope, person, agent, created_by, created_at, expires_at)
values (:name, :digest, :scope, :person, :agent, :created_by, :created_at, :expires_at)
on conflict (name) do nothing
returning name;

-- name: token_count
-- The number of access tokens.
select count(*) from tokens;

-- name: token_by_digest
-- The access token with this digest.
select name, digest, scope, person, agent, created_by, created_at, expires_at, used_on from tokens
where digest = :digest;

-- name: token_by_name
-- The access token with this name.
select name, digest, scope, person, agent, created_by, created_at, expires_at, used_on from tokens where name = :name;

-- name: tokens_all
-- Every access token.
select name, digest, scope, person, agent, created_by, created_at, expires_at, used_on from tokens order by name;

-- name: token_used
-- Record the day of an access token's last use.
update tokens set used_on = :day where name = :name and digest = :digest;

-- name: token_delete
-- Revoke an access token.
delete from tokens where name = :name returning name;
