-- name: child_caller
-- Lock the thread whose turn begins a child.
select open_turn, aborting from threads where thread = :thread /*pg: for update */;

-- name: child_ensure
-- Create a child's row.
insert into threads (thread, agent, title, parent, created_at, updated_at)
values (:thread, :agent, :title, :parent, :now, :now)
on conflict (thread) do nothing;

-- name: children_working
-- A thread's children that are active or have a waiting prompt, oldest first.
select t.thread from threads t
where t.parent = :parent and t.thread in (
    select thread from threads where open_turn <> ''
    union
    select thread from inbox where state = 'pending' and lane = 'prompt')
order by t.created_at, t.thread;

-- name: child_one
-- Whether a child is active or has a waiting prompt, and the end of its first turn.
select case when t.open_turn <> '' or exists (
        select 1 from inbox i where i.thread = t.thread and i.state = 'pending' and i.lane = 'prompt')
    then 1 else 0 end,
    (select e.data from events e where e.thread = t.thread and e.type = 'turn_finished' order by e.seq limit 1)
from threads t where t.thread = :thread;

-- name: wake_parent
-- Wake the parent of a thread in the same transaction. Locks the parent first.
/*pg: select shoal_wake(parent.thread) from ( */
/*pg: select p.thread from threads t join threads p on p.thread = t.parent where t.thread = :thread for update of p */
/*pg: ) parent */;
