-- What starts turns by the clock.

-- name: trigger_insert
-- Store a trigger.
insert into triggers (id, spec, next_at, created_at) values (:id, :spec, :next_at, :now);

-- name: triggers_all
-- Every trigger, the next due first.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers
order by case when next_at is null then 1 else 0 end, next_at, id;

-- name: trigger_hush
-- Give up the post of a trigger's last occurrence that waits for its platform.
update outbox set state = 'failed' where state = 'pending' and id in (
    select id || '@' || cast(last_at as text) from triggers where id = :id);

-- name: trigger_delete
-- Remove a trigger.
delete from triggers where id = :id returning id;

-- name: triggers_next
-- When the next trigger is due.
select min(next_at) from triggers where state = 'active' and next_at is not null;

-- name: triggers_due
-- Active triggers whose time has come.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers
where state = 'active' and next_at is not null and next_at <= :now order by next_at limit :limit;

-- name: trigger_advance
-- Move a trigger to its next time before the occurrence runs; nothing when another worker did.
update triggers set next_at = :next_at, last_at = :due_at,
    state = case when cast(:next_at as bigint) is null then :ended else state end
where id = :id and next_at = :due_at and state = 'active'
returning id;

-- name: trigger_sooner
-- Have a trigger come sooner than it was to; nothing when another worker has moved it meanwhile.
update triggers set next_at = :next_at where id = :id and next_at = :before and state = 'active' returning id;

-- name: occurrence_insert
-- Take an occurrence, once; one that was missed by a clock that ran ahead can still be taken.
insert into occurrences (key, trigger_id, due_at, state, at) values (:key, :trigger, :due_at, :state, :now)
on conflict (key) do update set state = excluded.state, at = excluded.at
    where occurrences.state = 'missed' and excluded.state <> 'missed'
returning key;

-- name: occurrence_missed
-- Whether an occurrence was missed.
select 1 from occurrences where key = :key and state = 'missed';

-- name: trigger_settle
-- Note how an occurrence went.
update triggers set
    failures = case when :error = '' then 0 else failures + 1 end,
    error = :error,
    state = case when :disable = 1 then 'failed' else state end
where id = :id;

-- name: trigger_one
-- One trigger.
select id, spec, state, next_at, created_at, last_at, failures, error from triggers where id = :id;

-- name: trigger_answered
-- The turn that a trigger started has come to its end.
update triggers set failures = 0, error = '' where id = :id and (failures > 0 or error <> '');

-- name: trigger_failed
-- The turn that a trigger started has failed; it comes again at `next_at`.
update triggers set failures = failures + 1, error = :error, next_at = :next_at, state = :state where id = :id;

-- name: trigger_again
-- Let a one-time trigger that was claimed or missed come again.
update triggers set state = 'active', next_at = :next_at, error = :error where id = :id and state in ('done', 'missed');

-- name: trigger_pause
-- Let a trigger rest.
update triggers set state = 'paused' where id = :id and state = 'active' returning id;

-- name: trigger_resume
-- Let a trigger come again.
update triggers set state = 'active', next_at = :next_at, failures = 0, error = ''
where id = :id and state in ('paused', 'failed')
returning id;

-- name: occurrences_page
-- The next occurrences of triggers, and when they were taken.
select key, at from occurrences where key > :after order by key limit :limit;

-- name: occurrences_forget
-- Delete occurrences: a trigger has moved on with each, and does not come back to it.
delete from occurrences where key in (
    select key from occurrences where key > :after and key <= :upto and at < :before
    /*pg: for update skip locked */)
returning key;

-- name: triggers_page
-- The next triggers, and when they were made.
select id, created_at from triggers where id > :after order by id limit :limit;

-- name: triggers_forget
-- Delete triggers that do not come again, unless what one of them says still waits for its platform.
delete from triggers where id in (
    select t.id from triggers t
    where t.id > :after and t.id <= :upto and t.last_at < :before and t.state in ('done', 'missed')
        and not exists (select 1 from outbox o
            where o.id = t.id || '@' || cast(t.last_at as text) and o.state in ('pending', 'sending'))
    /*pg: for update of t skip locked */)
returning id;
