-- name: artifact_insert
-- Record that a thread keeps a result. The same content again becomes the newest row.
insert into artifacts (thread, digest, name, size_bytes, turn, call_id, tainted_by, created_at)
values (:thread, :digest, :tool, :size_bytes, :turn, :call_id, :tainted_by, :now)
on conflict (thread, digest) do update set name = excluded.name, turn = excluded.turn, call_id = excluded.call_id,
    created_at = excluded.created_at,
    tainted_by = case when artifacts.tainted_by = '' then excluded.tainted_by else artifacts.tainted_by end;

-- name: artifacts_of
-- The results that a thread keeps, newest first.
select thread, digest, name, size_bytes, created_at, turn, call_id, tainted_by from artifacts
where thread = :thread order by created_at desc, digest limit :limit;

-- name: artifact_find
-- The newest result of a thread whose digest begins with a prefix.
select thread, digest, name, size_bytes, created_at, turn, call_id, tainted_by from artifacts
where thread = :thread and digest >= :low and digest < :high order by created_at desc limit 1;

-- name: artifacts_expire
-- Delete rows created before a time.
delete from artifacts where created_at < :before returning thread, digest;

-- name: artifact_kept
-- Whether any thread keeps this content.
select 1 from artifacts where digest = :digest limit 1;
