-- name: thread_lock
-- Lock a thread; whatever changes one begins with this, thread_hold or thread_ensure, so that nothing can deadlock.
select open_turn from threads where thread = :thread /*pg: for update */;

-- name: thread_hold
-- Lock a thread for the holder of the newest lease.
select last_seq from threads where thread = :thread and epoch = :epoch /*pg: for update */;

-- name: thread_lease
-- Take a thread over; nothing when it has nothing to do.
update threads set epoch = epoch + 1
where thread = :thread and (open_turn <> '' or exists (
    select 1 from inbox where inbox.thread = threads.thread and inbox.state = 'pending' and inbox.lane = 'prompt'))
/*pg: returning epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting */
/*sqlite: ; select epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting from threads */
/*sqlite: where thread = :thread and changes() > 0 */;

-- name: thread_advance
-- Reserve sequence numbers for the holder of the newest lease; PostgreSQL stores the events under them at once.
/*pg: with moved as ( */ update threads set last_seq = last_seq + :count where thread = :thread and epoch = :epoch
/*pg: returning last_seq) */ /*sqlite: ; select last_seq from threads where thread = :thread and changes() > 0 */
/*pg: select last_seq, shoal_append(:thread, last_seq - :count, :turn, :now, :types, :datas) from moved */;

-- name: thread_extend
-- Reserve sequence numbers for events outside any turn; PostgreSQL stores them at once.
/*pg: with moved as ( */ update threads set last_seq = last_seq + :count, updated_at = :now
where thread = :thread
returning last_seq /*pg: ) */
/*pg: select last_seq, shoal_append(:thread, last_seq - :count, :turn, :now, :types, :datas) from moved */;

-- name: thread_window
-- The model's window starts after this event.
update threads set window_seq = :seq where thread = :thread;

-- name: thread_open
-- A turn opened.
update threads set open_turn = :turn, turn_seq = :seq, aborting = '', updated_at = :now,
    agent = case when :agent = '' then agent else :agent end
where thread = :thread;

-- name: thread_close
-- The open turn ended.
update threads set open_turn = '', aborting = '', updated_at = :now where thread = :thread;

-- name: event_insert
-- Store one event; PostgreSQL has stored it with its number.
/*sqlite: insert into events (thread, seq, turn, type, at, data) values (:thread, :seq, :turn, :type, :at, :data) */;

-- name: events_range
-- Events of a thread between two numbers, oldest first.
select seq, turn, type, at, data from events
where thread = :thread and seq > :after and seq < :before order by seq limit :limit;

-- name: threads_recent
-- Threads, the last active first.
select t.thread, t.agent, t.last_seq, t.created_at, t.updated_at, t.title, t.open_turn,
    (select count(*) from inbox i where i.thread = t.thread and i.state = 'pending' and i.lane = 'prompt'), t.parent
from threads t
where t.updated_at < :before and (:agent = '' or t.agent = :agent)
order by t.updated_at desc, t.thread desc limit :limit;

-- name: thread_one
-- One thread.
select t.thread, t.agent, t.last_seq, t.created_at, t.updated_at, t.title, t.open_turn,
    (select count(*) from inbox i where i.thread = t.thread and i.state = 'pending' and i.lane = 'prompt'), t.parent
from threads t where t.thread = :thread;

-- name: step_insert
-- Record how long a step took.
insert into thread_steps (thread, turn, number, description, started_at, duration_ms)
values (:thread, :turn, :number, :description, :started_at, :duration_ms);

-- name: steps_of_thread
-- The recorded steps of a thread.
select turn, number, description, started_at, duration_ms from thread_steps
where thread = :thread order by started_at, number limit 10000;

-- name: spend_insert
-- Record the use of one model call.
insert into spend (id, thread, turn, day, agent, user_id, model, input_tokens, output_tokens, cached_tokens,
    cache_write_tokens, reasoning_tokens, usd, at)
values (:id, :thread, :turn, :day, :agent, :user_id, :model, :input_tokens, :output_tokens, :cached_tokens,
    :cache_write_tokens, :reasoning_tokens, :usd, :now)
on conflict (id) do nothing;

-- name: spend_by_day
-- Use summed by day, agent and model.
select day, agent, model, count(*), sum(input_tokens), sum(output_tokens), sum(cached_tokens),
    sum(cache_write_tokens), sum(reasoning_tokens), sum(usd), count(usd)
from spend where day >= :since group by day, agent, model order by day desc, agent, model;

-- name: setting_get
-- A small durable value.
select value from settings where scope = :scope and key = :key;

-- name: setting_put
-- Set a small durable value.
insert into settings (scope, key, value) values (:scope, :key, :value)
on conflict (scope, key) do update set value = excluded.value;

-- name: setting_note
-- Set a small durable value; nothing is locked or written when it is so already.
insert into settings (scope, key, value)
select :scope, :key, :value
where not exists (select 1 from settings where scope = :scope and key = :key and value = :value)
on conflict (scope, key) do update set value = excluded.value;

-- name: setting_make
-- Set a small durable value that is not set yet; nothing when it is.
insert into settings (scope, key, value) values (:scope, :key, :value)
on conflict (scope, key) do nothing
returning key;

-- name: setting_swap
-- Change a small durable value if it is still what it was.
update settings set value = :value where scope = :scope and key = :key and value = :expected returning key;

-- name: prompt_insert
-- Keep a system prompt once.
insert into prompts (digest, body, at) values (:digest, :body, :now) on conflict (digest) do nothing;

-- name: prompt_one
-- A kept system prompt.
select body from prompts where digest = :digest;
