-- name: agent_lock
-- The state of an agent. Locks its row.
select state from agents where name = :agent /*pg: for update */;

-- name: agent_put
-- Record an agent and its configuration.
insert into agents (name, state, digest, created_at, changed_at) values (:agent, 'active', :digest, :now, :now)
on conflict (name) do update set state = 'active', digest = excluded.digest,
    changed_at = case when agents.state = 'active' and agents.digest = excluded.digest
        then agents.changed_at else excluded.changed_at end;

-- name: agent_retire
-- Mark an agent as destroyed.
update agents set state = 'destroyed', changed_at = :now where name = :agent;

-- name: agents_all
-- All agents, including destroyed ones.
select name, state, digest, created_at, changed_at from agents order by name;

-- name: binding_put
-- Bind a channel to an agent.
insert into bindings (platform, channel, agent, bound_by, made, created_at, listen)
values (:platform, :channel, :agent, :bound_by, :made, :created_at, :listen)
on conflict (platform, channel) do update set agent = excluded.agent, bound_by = excluded.bound_by,
    made = excluded.made, created_at = excluded.created_at, listen = excluded.listen;

-- name: binding_delete
-- Delete a channel's binding.
delete from bindings where platform = :platform and channel = :channel returning agent;

-- name: bindings_drop
-- Delete all bindings of an agent.
delete from bindings where agent = :agent returning platform, channel, agent, bound_by, created_at, made, listen;

-- name: bindings_all
-- All bindings.
select platform, channel, agent, bound_by, created_at, made, listen from bindings order by platform, channel limit :limit;

-- name: threads_at_work
-- Active threads, with their work.
select t.thread, t.agent, t.open_turn, t.parent,
    (select e.data from events e
        where e.thread = t.thread and e.seq >= t.turn_seq and e.type = 'user_message' order by e.seq limit 1),
    (select e.at from events e where e.thread = t.thread and e.seq = t.turn_seq),
    (select count(*) from thread_steps s where s.thread = t.thread and s.turn = t.open_turn),
    (select count(*) from approvals a where a.thread = t.thread and a.turn = t.open_turn and a.state = 'pending'),
    (select count(*) from inbox i where i.thread = t.thread and i.state = 'pending' and i.lane = 'prompt')
from (
    select thread, agent, open_turn, parent, turn_seq, updated_at from threads
    where thread in (
        select thread from threads where open_turn <> ''
        union
        select thread from inbox where state = 'pending' and lane = 'prompt')
    and (:agent = '' or agent = :agent)
    and ((thread >= :low and thread < :high) or (parent /*pg: collate "C" */ >= :low and parent /*pg: collate "C" */ < :high))
    order by case when open_turn = '' then 1 else 0 end, updated_at, thread limit :limit
) t
order by case when t.open_turn = '' then 1 else 0 end, t.updated_at, t.thread;

-- name: settings_of
-- The values of a scope, one page at a time.
select key, value from settings where scope = :scope and key > :after order by key limit :limit;

-- name: setting_delete
-- Delete a small durable value.
delete from settings where scope = :scope and key = :key;

-- name: setting_drop
-- Delete a small durable value if it is unchanged.
delete from settings where scope = :scope and key = :key and value = :expected returning key;
