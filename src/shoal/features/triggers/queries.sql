-- Triggers that start turns by the clock.

-- name: trigger_insert
-- Store a trigger.
insert into triggers (id, spec, next_at, created_at) values (:id, :spec, :next_at, :now);

-- name: triggers_all
-- Return all triggers, next due first.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers
order by case when next_at is null then 1 else 0 end, next_at, id;

-- name: trigger_hush
-- Withdraw the post of a trigger's last occurrence if it waits for its platform.
update outbox set state = 'failed' where state = 'pending' and id in (
    select id || '@' || cast(last_at as text) from triggers where id = :id);

-- name: trigger_delete
-- Delete a trigger.
delete from triggers where id = :id returning id;

-- name: triggers_next
-- Return the time at which the next trigger is due.
select min(next_at) from triggers where state = 'active' and next_at is not null;

-- name: triggers_due
-- Return the active triggers that are due.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers
where state = 'active' and next_at is not null and next_at <= :now order by next_at limit :limit;

-- name: trigger_advance
-- Advance a trigger before its occurrence runs. Does nothing if another worker did.
update triggers set next_at = :next_at, last_at = :due_at,
    state = case when cast(:next_at as bigint) is null then :ended else state end
where id = :id and next_at = :due_at and state = 'active'
returning id;

-- name: trigger_sooner
-- Move a trigger forward. Does nothing if another worker moved it first.
update triggers set next_at = :next_at where id = :id and next_at = :before and state = 'active' returning id;

-- name: occurrence_insert
-- Claim an occurrence, once. One that was missed by a clock that ran ahead can still be claimed.
insert into occurrences (key, trigger_id, due_at, state, at) values (:key, :trigger, :due_at, :state, :now)
on conflict (key) do update set state = excluded.state, at = excluded.at
    where occurrences.state = 'missed' and excluded.state <> 'missed'
returning key;

-- name: occurrence_missed
-- Return whether an occurrence was missed.
select 1 from occurrences where key = :key and state = 'missed';

-- name: trigger_settle
-- Record the outcome of an occurrence.
update triggers set
    failures = case when :error = '' then 0 else failures + 1 end,
    error = :error,
    state = case when :disable = 1 then 'failed' else state end
where id = :id;

-- name: trigger_one
-- Return a trigger.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers where id = :id;

-- name: trigger_answered
-- Record that a turn started by a trigger ended successfully.
update triggers set failures = 0, error = '' where id = :id and (failures > 0 or error <> '');

-- name: trigger_failed
-- Record that a turn started by a trigger failed. The trigger fires again at `next_at`.
update triggers set failures = failures + 1, error = :error, next_at = :next_at, state = :state where id = :id;

-- name: trigger_again
-- Schedule a one-time trigger that was claimed or missed to fire again.
update triggers set state = 'active', next_at = :next_at, error = :error where id = :id and state in ('done', 'missed');

-- name: trigger_pause
-- Pause a trigger.
update triggers set state = 'paused' where id = :id and state = 'active' returning id;

-- name: trigger_resume
-- Resume a trigger.
update triggers set state = 'active', next_at = :next_at, failures = 0, error = ''
where id = :id and state in ('paused', 'failed')
returning id;

-- name: occurrences_page
-- Return the next occurrences with the times when they were claimed.
select key, at from occurrences where key > :after order by key limit :limit;

-- name: occurrences_forget
-- Delete occurrences. Their triggers have advanced and do not return to them.
delete from occurrences where key in (
    select key from occurrences where key > :after and key <= :upto and at < :before
    /*pg: for update skip locked */)
returning key;

-- name: triggers_page
-- Return the next triggers with the times when they were created.
select id, created_at from triggers where id > :after order by id limit :limit;

-- name: triggers_forget
-- Delete triggers that will not fire again, unless a post of one still waits for its platform.
delete from triggers where id in (
    select t.id from triggers t
    where t.id > :after and t.id <= :upto and t.last_at < :before and t.state in ('done', 'missed')
        and not exists (select 1 from outbox o
            where o.id = t.id || '@' || cast(t.last_at as text) and o.state in ('pending', 'sending'))
    /*pg: for update of t skip locked */)
returning id;
