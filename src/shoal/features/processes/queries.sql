-- name: processes_count
-- Count an agent's running processes for a channel.
select count(*) from processes where agent = :agent and state = 'running' and thread >= :low and thread < :high;

-- name: process_insert
-- Store a process that is about to start.
insert into processes (id, agent, thread, spec, owner, started_at, seen_at)
values (:id, :agent, :thread, :spec, :owner, :now, :now);

-- name: process_identify
-- Record a process's identity on its machine.
update processes set identity = :identity where id = :id;

-- name: process_taint
-- Record a process's taint.
update processes set spec = :spec where id = :id;

-- name: process_end
-- Record a process's end, once.
update processes set state = :state, exit_code = cast(:exit_code as integer), reason = :reason, ended_at = :now,
    told = :told
where id = :id and state = 'running'
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;

-- name: process_kill
-- Request a process's end.
update processes set killed_by = :by where id = :id and state = 'running' returning id;

-- name: processes_beat
-- Record a sign of life of an owner, and return its processes.
update processes set seen_at = :now where owner = :owner and state = 'running'
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;

-- name: process_tell
-- Record that the hooks have reported a process's end.
update processes set told = 1 where id = :id;

-- name: processes_untold
-- Return ended processes whose hooks have not reported the end.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where told = 0 and state <> 'running' order by ended_at, id limit :limit;

-- name: process_one
-- Return a process.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where id = :id;

-- name: processes_recent
-- Return processes, newest first.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where (:agent = '' or agent = :agent) and thread >= :low and thread < :high
order by started_at desc, id desc limit :limit;

-- name: processes_running
-- Return running processes, newest first.
select id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told
from processes where id in (select id from processes where state = 'running')
    and (:agent = '' or agent = :agent) and thread >= :low and thread < :high
order by started_at desc, id desc limit :limit;

-- name: process_cause
-- Return the message that started a turn.
select data from events
where thread = :thread and turn = :turn and type = 'user_message' and seq >= coalesce(
    (select t.turn_seq from threads t where t.thread = :thread and t.open_turn = :turn), 0)
order by seq limit 1;

-- name: processes_forget
-- Delete old rows.
delete from processes where state <> 'running' and told = 1 and ended_at < :before
returning id, spec, state, owner, identity, started_at, seen_at, ended_at, exit_code, reason, killed_by, told;
