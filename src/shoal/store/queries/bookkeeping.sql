-- name: inbox_page
-- The next messages by number, with their arrival times.
select id, at from inbox where id > :after order by id limit :limit;

-- name: inbox_forget
-- Delete messages that are done. A subagent's message is kept while its caller's turn is open, because that may ask for
-- it again. The newest row is kept too, otherwise SQLite would reuse its number.
delete from inbox where id in (
    select i.id from inbox i
    where i.id > :after and i.id <= :upto and i.at < :before and i.state <> 'pending'
        and i.id < (select max(id) from inbox)
        and not exists (select 1 from threads c join threads p on p.thread = c.parent
            where c.thread = i.thread and p.open_turn <> '')
    /*pg: for update of i skip locked */)
returning id;

-- name: outbox_page
-- The next posts by number, with their creation times.
select number, created_at from outbox where number > :after order by number limit :limit;

-- name: outbox_forget
-- Delete sent and failed posts; `due_at` is the time of the last attempt. The newest post is kept for its number, and
-- the alert about the total budget is kept because it is sent only once.
delete from outbox where number in (
    select number from outbox
    where number > :after and number <= :upto and due_at < :before and state in ('sent', 'failed')
        and number < (select max(number) from outbox) and id <> 'budget:total:'
    /*pg: for update skip locked */)
returning number;

-- name: approvals_page
-- The next approvals, with their creation times.
select id, created_at from approvals where id > :after order by id limit :limit;

-- name: approvals_forget
-- Delete approvals of ended turns, except those allowed for a whole thread.
delete from approvals where id in (
    select a.id from approvals a
    where a.id > :after and a.id <= :upto and a.decided_at < :before and a.state <> 'pending'
        and not (a.scope = 'thread' and a.state in ('allow', 'used'))
        and not exists (select 1 from threads t where t.thread = a.thread and t.open_turn = a.turn)
    /*pg: for update of a skip locked */)
returning id;

-- name: steps_page
-- The next steps of threads.
select thread, started_at from thread_steps where (thread, started_at) > (:after, :after_at)
order by thread, started_at limit :limit;

-- name: steps_forget
-- Delete the step durations of ended turns.
delete from thread_steps where /*pg: ctid */ /*sqlite: rowid */ in (
    select /*pg: s.ctid */ /*sqlite: s.rowid */ from thread_steps s
    where (s.thread, s.started_at) > (:after, :after_at) and (s.thread, s.started_at) <= (:upto, :upto_at)
        and s.started_at < :before
        and not exists (select 1 from threads t where t.thread = s.thread and t.open_turn = s.turn)
    /*pg: for update of s skip locked */)
returning thread;

-- name: once_page
-- The next one-time keys, with their times.
select key, cast(substr(value, 1, 16) as bigint) from settings
where scope = 'once' and key > :after order by key limit :limit;

-- name: once_forget
-- Delete old one-time keys that cannot be repeated any more.
delete from settings where scope = 'once' and key in (
    select key from settings
    where scope = 'once' and key > :after and key <= :upto and cast(substr(value, 1, 16) as bigint) < :before
    /*pg: for update skip locked */)
returning key;

-- name: budget_days_forget
-- Delete the spent amounts of past days.
with old as materialized (
    select scope, day from budget where day > '' and day < :day order by day limit :limit
    /*pg: for update skip locked */)
delete from budget where (scope, day) in (select scope, day from old)
returning scope;

-- name: budget_turns_forget
-- Delete the spent amounts of ended turns that began before the turn with this id.
with old as materialized (
    select b.scope from budget b
    where b.day = '' and b.scope > 'turn:' and b.scope < :turn
        and not exists (select 1 from threads t where t.open_turn <> '' and t.open_turn = substr(b.scope, 6))
    order by b.scope limit :limit /*pg: for update of b skip locked */)
delete from budget where day = '' and scope in (select scope from old)
returning scope;
