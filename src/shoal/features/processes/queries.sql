-- name: processes_count
-- How many processes of an agent run for a channel.
select count(*) from processes where agent = :agent and state = 'running' and thread >= :low and thread < :high;

-- name: process_insert
-- Store a process that is about to start.
insert into processes (id, agent, thread, spec, owner, started_at, seen_at)
values (:id, :agent, :thread, :spec, :owner, :now, :now);

-- name: process_identify
-- Note which process of its machine it is.
update processes set identity = :identity where id = :id;

-- name: process_taint
-- Note that a process has read what taints it.
update processes set spec = :spec where id = :id;

-- name: process_end
-- Note how a process ended, once.
update processes set state = :state, exit_code = cast(:exit_code as integer), reason = :reason, ended_at = :now,
    told = :told
where id = :id and state = 'running'
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;

-- name: process_kill
-- Ask for a process's end.
update processes set killed_by = :by where id = :id and state = 'running' returning id;

-- name: processes_beat
-- A sign of life of whoever runs processes; returns those.
update processes set seen_at = :now where owner = :owner and state = 'running'
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;

-- name: process_tell
-- The hooks know of the end.
update processes set told = 1 where id = :id;

-- name: processes_untold
-- Ended processes whose hooks do not know it.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where told = 0 and state <> 'running' order by ended_at, id limit :limit;

-- name: process_one
-- One process.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where id = :id;

-- name: processes_recent
-- Processes, newest first.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where (:agent = '' or agent = :agent) and thread >= :low and thread < :high
order by started_at desc, id desc limit :limit;

-- name: processes_running
-- Processes that run, newest first.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where id in (select id from processes where state = 'running')
    and (:agent = '' or agent = :agent) and thread >= :low and thread < :high
order by started_at desc, id desc limit :limit;

-- name: process_cause
-- What began a turn.
select data from events
where thread = :thread and turn = :turn and type = 'user_message' and seq >= coalesce(
    (select t.turn_seq from threads t where t.thread = :thread and t.open_turn = :turn), 0)
order by seq limit 1;

-- name: processes_forget
-- Drop old rows.
delete from processes where state <> 'running' and told = 1 and ended_at < :before
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;
