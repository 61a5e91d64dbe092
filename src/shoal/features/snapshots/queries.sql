-- name: snapshot_insert
-- Store a saved conversation.
insert into snapshots (id, thread, agent, description, messages, created_at)
values (:id, :thread, :agent, :description, :messages, :created_at);

-- name: snapshots_of
-- Return an agent's saved conversations in a channel, newest first.
select id, thread, agent, description, messages, created_at from snapshots
where agent = :agent and thread >= :low and thread < :high order by id desc limit :limit;

-- name: windows_of
-- Return an agent's threads with a non-empty window.
select thread, window_seq, last_seq, updated_at, case when open_turn <> '' or exists (
    select 1 from inbox where inbox.thread = threads.thread and inbox.state = 'pending') then 1 else 0 end
from threads where agent = :agent and last_seq > window_seq order by updated_at desc limit 10000;

-- name: thread_begin
-- Reserve sequence numbers in an idle thread whose journal ends at a number. PostgreSQL stores the events in the same
-- statement.
/*pg: with moved as ( */ update threads set last_seq = last_seq + :count, updated_at = :now
where thread = :thread and last_seq = :last_seq and open_turn = ''
returning last_seq, aborting /*pg: ) */
/*pg: select last_seq, aborting, shoal_append(:thread, last_seq - :count, :turn, :now, :types, :datas) from moved */;
