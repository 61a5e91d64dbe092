-- name: audit_insert
-- Append an entry to a chain.
insert into audit (chain, number, at, entry, previous, hash) values (:chain, :number, :now, :entry, :previous, :hash);

-- name: audit_tail
-- The newest entries of all chains.
select chain, number, at, entry, previous, hash from audit
order by at desc, chain desc, number desc limit :limit;

-- name: audit_tail_of
-- The newest entries of a chain.
select chain, number, at, entry, previous, hash from audit
where chain = :chain order by number desc limit :limit;

-- name: audit_after
-- Entries of all chains after a given one, by chain and number.
select chain, number, at, entry, previous, hash from audit
where (chain, number) > (:chain, :after) order by chain, number limit :limit;

-- name: audit_since
-- Entries of all chains after a given time, by time.
select chain, number, at, entry, previous, hash from audit
where (at, chain, number) > (:since, :chain, :number) order by at, chain, number limit :limit;

-- name: chain_ensure
-- Create a chain's row if it is new, and lock it for the transaction.
insert into chains (chain, number, head) values (:chain, 0, :genesis)
on conflict (chain) do update set number = chains.number
returning number, head;

-- name: chain_advance
-- Store a chain's new head.
update chains set number = :number, head = :head where chain = :chain;

-- name: audit_chains
-- Every chain with its length and head.
select chain, number, head from chains order by chain;

-- name: audit_orphans
-- Chains with entries but no head.
with recursive found (chain) as (
    select min(chain) from audit
    union all
    select (select min(a.chain) from audit a where a.chain > found.chain) from found where found.chain is not null)
select chain, 0, '' from found
where chain is not null and not exists (select 1 from chains where chains.chain = found.chain);
