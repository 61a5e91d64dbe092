-- name: thread_lock
-- Lock a thread. Every change begins with a lock or with thread_ensure, so transactions cannot deadlock.
/*pg: select from threads where thread = :thread for update */;

-- name: thread_lock_turn
-- Lock a thread and return its open turn.
select open_turn from threads where thread = :thread /*pg: for update */;

-- name: thread_lock_leased
-- Lock a thread for the holder of the newest lease. PostgreSQL ends the transaction of any other.
/*pg: select from shoal_hold(:thread, :epoch) */;

-- name: thread_hold
-- Lock a thread for the holder of the newest lease, and return whether its turn must stop and where its journal ends.
select aborting, last_seq from threads where thread = :thread and epoch = :epoch /*pg: for update */;

-- name: thread_lease
-- Take a thread over. Does nothing if it is idle.
update threads set epoch = epoch + 1
where thread = :thread and (open_turn <> '' or exists (
    select 1 from inbox where inbox.thread = threads.thread and inbox.state = 'pending' and inbox.lane = 'prompt'))
/*pg: returning epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting, branch_seq, model, created_at */
/*sqlite: ; select epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting, branch_seq, model, created_at from threads */
/*sqlite: where thread = :thread and changes() > 0 */;

-- name: thread_held
-- The waiting prompts for the holder of a thread's newest lease while no turn is open. Empty if the thread was deleted
-- and created again since.
select t.agent, t.last_seq, t.window_seq, t.model, i.payload, i.at from threads t
join inbox i on i.thread = t.thread and i.state = 'pending' and i.lane = 'prompt'
where t.thread = :thread and t.epoch = :epoch and t.created_at = :created_at and t.open_turn = '' order by i.id limit :limit;

-- name: thread_advance
-- Reserve sequence numbers for the holder of the newest lease, and return whether its turn must stop. PostgreSQL stores
-- the events in the same statement.
/*pg: with moved as ( */ update threads set last_seq = last_seq + :count where thread = :thread and epoch = :epoch
/*pg: returning last_seq, aborting) */
/*sqlite: ; select last_seq, aborting from threads where thread = :thread and changes() > 0 */
/*pg: select last_seq, aborting, shoal_append(:thread, last_seq - :count, :turn, :now, :types, :datas) from moved */;

-- name: thread_extend
-- Reserve sequence numbers for events outside any turn. PostgreSQL stores the events in the same statement.
/*pg: with moved as ( */ update threads set last_seq = last_seq + :count, updated_at = :now
where thread = :thread
returning last_seq, aborting /*pg: ) */
/*pg: select last_seq, aborting, shoal_append(:thread, last_seq - :count, :turn, :now, :types, :datas) from moved */;

-- name: thread_window
-- Start the model's window after this event.
update threads set window_seq = :seq where thread = :thread;

-- name: thread_open
-- Open a turn with the next event.
update threads set open_turn = :turn, turn_seq = last_seq + 1, aborting = '', updated_at = :now,
    agent = case when :agent = '' then agent else :agent end
where thread = :thread;

-- name: thread_close
-- Close the open turn.
update threads set open_turn = '', aborting = '', retry_at = null, updated_at = :now where thread = :thread;

-- name: thread_retry
-- Set when the open turn retries its model, or null if it does not wait.
update threads set retry_at = :retry_at, retry_set_at = :now where thread = :thread;

-- name: thread_retry_now
-- End the retry wait of an open turn on a person's request. Does nothing if it does not wait.
update threads set retry_at = :now, retry_set_at = :now
where thread = :thread and (:turn = '' or open_turn = :turn) and retry_at is not null
returning open_turn;

-- name: threads_retry_due
-- Take the turns whose wait is over, including those postponed by a clock that was set back since. If a process takes
-- one and ends before it continues, it is due again at `again`.
update threads set retry_at = :again, retry_set_at = :now
where retry_at is not null and (retry_at <= :now or retry_set_at > :now)
returning thread;

-- name: threads_retry_next
-- When the next turn retries its model.
select min(retry_at) from threads where retry_at is not null;

-- name: event_insert
-- Store one event. PostgreSQL has already stored it with its number.
/*sqlite: insert into events (thread, seq, turn, type, at, data) values (:thread, :seq, :turn, :type, :at, :data) */;

-- name: events_range
-- Events of a thread between two numbers, oldest first.
select seq, turn, type, at, data from events
where thread = :thread and seq > :after and seq < :before order by seq limit :limit;

-- name: threads_recent
-- Threads, most recently active first.
select * from thread_infos where thread in (
    select thread from threads where updated_at < :before and archived = 0 order by updated_at desc, thread desc limit :limit)
order by updated_at desc, created_at desc, thread desc;

-- name: threads_archived
-- Archived threads, most recently active first.
select * from thread_infos where thread in (
    select thread from threads where archived = 1 and updated_at < :before
    order by updated_at desc, thread desc limit :limit)
order by updated_at desc, created_at desc, thread desc;

-- name: threads_pinned
-- Pinned threads, most recently active first.
select * from thread_infos where thread in (
    select thread from threads where pinned = 1 and archived = 0 order by updated_at desc, thread desc limit :limit)
order by updated_at desc, created_at desc, thread desc;

-- name: threads_of_agent
-- An agent's threads, most recently active first.
select * from thread_infos where thread in (
    select thread from threads where agent = :agent and updated_at < :before and archived = :archived
    order by updated_at desc, thread desc limit :limit)
order by updated_at desc, created_at desc, thread desc;

-- name: threads_of_channel
-- Threads of a channel and of their subagents, most recently active first. The channel is the part of the id up to the
-- last colon.
select * from thread_infos where thread in (
    select thread from (select thread from threads
        where rtrim(thread, replace(thread, ':', '')) = :channel and updated_at < :before and archived = :archived
            and (:agent = '' or agent = :agent)
        order by updated_at desc, thread desc limit :limit) own
    union
    select thread from (select thread from threads
        where rtrim(parent, replace(parent, ':', '')) = :channel and parent <> '' and updated_at < :before
            and archived = :archived and (:agent = '' or agent = :agent)
        order by updated_at desc, thread desc limit :limit) begun)
order by updated_at desc, created_at desc, thread desc limit :limit;

-- name: thread_one
-- One thread.
select * from thread_infos where thread = :thread;

-- name: step_insert
-- Record how long a step took.
insert into thread_steps (thread, turn, number, description, started_at, duration_ms)
values (:thread, :turn, :number, :description, :started_at, :duration_ms);

-- name: steps_of_thread
-- The recorded steps of a thread.
select turn, number, description, started_at, duration_ms from thread_steps
where thread = :thread order by started_at, number limit 10000;

-- name: spend_insert
-- Record the usage of one model call. Does nothing if it is already recorded.
insert into spend (id, thread, turn, day, agent, user_id, model, input_tokens, output_tokens, cached_tokens,
    cache_write_tokens, reasoning_tokens, estimated, usd, at)
values (:id, :thread, :turn, :day, :agent, :user_id, :model, :input_tokens, :output_tokens, :cached_tokens,
    :cache_write_tokens, :reasoning_tokens, :estimated, :usd, :now)
on conflict (id) do nothing
/*pg: returning id */ /*sqlite: ; select 1 where changes() > 0 */;

-- name: spend_add
-- Add a model call to the sums of its day, agent and model.
insert into spend_days (day, agent, model, calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens,
    reasoning_tokens, estimated, usd, priced)
values (:day, :agent, :model, 1, :input_tokens, :output_tokens, :cached_tokens, :cache_write_tokens,
    :reasoning_tokens, :estimated, coalesce(cast(:usd as double precision), 0),
    case when cast(:usd as double precision) is null then 0 else 1 end)
on conflict (day, agent, model) do update set
    calls = spend_days.calls + 1,
    input_tokens = spend_days.input_tokens + excluded.input_tokens,
    output_tokens = spend_days.output_tokens + excluded.output_tokens,
    cached_tokens = spend_days.cached_tokens + excluded.cached_tokens,
    cache_write_tokens = spend_days.cache_write_tokens + excluded.cache_write_tokens,
    reasoning_tokens = spend_days.reasoning_tokens + excluded.reasoning_tokens,
    estimated = spend_days.estimated + excluded.estimated,
    usd = spend_days.usd + excluded.usd,
    priced = spend_days.priced + excluded.priced;

-- name: spend_by_day
-- Usage by day, agent and model.
select day, agent, model, calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,
    estimated, usd, priced
from spend_days where day >= :since order by day desc, agent, model;

-- name: spend_newest
-- The newest model calls with ids between two bounds: of turns, or of one other kind.
select thread, input_tokens, output_tokens, cached_tokens, usd, estimated from spend
where id >= :low and id < :high order by id desc limit :limit;

-- name: setting_get
-- A small durable value.
select value from settings where scope = :scope and key = :key;

-- name: setting_put
-- Set a small durable value.
insert into settings (scope, key, value) values (:scope, :key, :value)
on conflict (scope, key) do update set value = excluded.value;

-- name: setting_note
-- Set a small durable value. Locks and writes nothing if it is unchanged.
insert into settings (scope, key, value)
select :scope, :key, :value
where not exists (select 1 from settings where scope = :scope and key = :key and value = :value)
on conflict (scope, key) do update set value = excluded.value;

-- name: setting_make
-- Set a small durable value that is not set. Does nothing if it is.
insert into settings (scope, key, value) values (:scope, :key, :value)
on conflict (scope, key) do nothing
returning key;

-- name: setting_swap
-- Change a small durable value if it is unchanged.
update settings set value = :value where scope = :scope and key = :key and value = :expected returning key;

-- name: prompt_insert
-- Store a system prompt once.
insert into prompts (digest, body, at) values (:digest, :body, :now) on conflict (digest) do nothing;

-- name: prompt_one
-- A stored system prompt.
select body from prompts where digest = :digest;

-- name: thread_rest
-- Lock an idle thread and end all its leases, because their cached state is out of date.
update threads set epoch = epoch + 1, updated_at = :now
where thread = :thread and open_turn = '' and not exists (
    select 1 from inbox where inbox.thread = threads.thread and inbox.state = 'pending')
returning last_seq;

-- name: thread_branch
-- Continue the conversation with this event. The model's window starts after the other event.
update threads set branch_seq = :branch_seq, window_seq = :window_seq where thread = :thread;

-- name: event_types
-- The event types in a thread.
select distinct type from events where thread = :thread;

-- name: branchings_of
-- The events that began branches in a thread, up to a number, oldest first.
select seq, data from events where thread = :thread and type = 'branched' and seq <= :seq order by seq limit :limit;

-- name: notes_between
-- Events outside of turns in a thread between two events, oldest first.
select data from events
where thread = :thread and seq > :after and seq <= :last and type = 'user_message' and turn = '' order by seq limit :limit;

-- name: failures_of
-- The failures of a thread, newest first.
select data from events where thread = :thread and type = 'error' order by seq desc limit :limit;

-- name: turn_since
-- Whether a turn has an event after the given one.
select 1 from events where thread = :thread and seq > :after and turn = :turn limit 1;

-- name: window_between
-- The last event between two that moved the model's window.
select seq, type, data from events
where thread = :thread and type in ('cleared', 'compacted') and seq >= :first and seq <= :last order by seq desc limit 1;

-- name: turn_until
-- The last event of a turn up to a number.
select type, turn from events where thread = :thread and seq <= :seq and turn <> '' order by seq desc limit 1;

-- name: thread_fork
-- Create a new thread like another one that has at least this many events.
insert into threads (thread, agent, title, last_seq, created_at, updated_at)
select :thread, agent, :title, :seq, :now, :now from threads where thread = :source and last_seq >= :seq
on conflict (thread) do nothing returning thread;

-- name: events_fork
-- Copy a thread's events up to a number.
insert into events (thread, seq, turn, type, at, data)
select :thread, seq, turn, type, at, data from events where thread = :source and seq <= :seq order by seq limit :seq;

-- name: event_moved
-- Replace the file paths in a copied event.
update events set data = :data where thread = :thread and seq = :seq;

-- name: search_end
-- The highest number in the search index.
/*sqlite: select id from search_events order by id desc limit 1 */;

-- name: search_fork
-- Add a copy's messages to the search index. PostgreSQL does this automatically.
/*sqlite: insert into search_events (thread, seq) */
/*sqlite: select :thread, seq from events where thread = :thread */
/*sqlite: and type in ('user_message', 'steered', 'assistant_message') and substr(data, 1, 10) <> '{"text":""' order by seq; */
/*sqlite: insert into search_words (rowid, words, places) */
/*sqlite: select said.id, spread(json_extract(replace(e.data, '\u0000', '\u0020'), '$.text')), places(said.thread) */
/*sqlite: from search_events said cross join events e on e.thread = said.thread and e.seq = said.seq */
/*sqlite: where said.id > :end order by said.id */;

-- name: artifacts_fork
-- Record that a copy of a thread keeps the results that the thread had at the copied point.
insert into artifacts (thread, digest, name, size_bytes, turn, call_id, tainted_by, created_at)
select :thread, digest, name, size_bytes, turn, call_id, tainted_by, created_at from artifacts
where thread = :source and created_at <= (select at from events where thread = :source and seq = :seq);

-- name: turns_ended
-- The newest turns that ended since a time and posted something or failed, without subagents' turns. With `faults`,
-- only failed ones.
select thread, seq, turn
from events /*pg: cross join lateral (select cast(replace(data, '\u0000', '\u0020') as jsonb) as fields offset 0) as body */
where type = 'turn_finished' and at >= :since and thread || '' >= :low and thread || '' < :high
    and substr(thread, 1, 6) <> 'agent:'
    /*sqlite: and json_valid(data) and (json_extract(data, '$.outcome') in ('failed', 'limit') */
    /*sqlite: or (:faults = 0 and (json_extract(data, '$.outcome') <> 'done' */
    /*sqlite: or trim(coalesce(json_extract(data, '$.reply'), '')) not in ('', '[SILENT]')))) */
    /*pg: and (fields ->> 'outcome' in ('failed', 'limit') or (:faults = 0 and (fields ->> 'outcome' <> 'done' */
    /*pg: or trim(coalesce(fields ->> 'reply', '')) not in ('', '[SILENT]')))) */
order by at desc, thread desc, seq desc limit :limit;

-- name: turns_ended_by_hour
-- The number of these turns per hour and outcome, and their tokens.
select hour, outcome, count(*), sum(tokens) from (
    select at / 3600000000 as hour,
        /*sqlite: json_extract(data, '$.outcome') as outcome, trim(coalesce(json_extract(data, '$.reply'), '')) as reply, */
        /*sqlite: coalesce(json_extract(data, '$.usage.input_tokens'), 0) */
        /*sqlite: + coalesce(json_extract(data, '$.usage.output_tokens'), 0) as tokens */
        /*pg: fields ->> 'outcome' as outcome, trim(coalesce(fields ->> 'reply', '')) as reply, */
        /*pg: coalesce(cast(fields #>> '{usage,input_tokens}' as bigint), 0) */
        /*pg: + coalesce(cast(fields #>> '{usage,output_tokens}' as bigint), 0) as tokens */
    from events /*pg: cross join lateral (select cast(replace(data, '\u0000', '\u0020') as jsonb) as fields offset 0) as body */
    where type = 'turn_finished' and at >= :since and thread || '' >= :low and thread || '' < :high
        and substr(thread, 1, 6) <> 'agent:' /*sqlite: and json_valid(data) */
    order by at desc, thread desc, seq desc limit :counted) as ended
where outcome <> 'done' or reply not in ('', '[SILENT]')
group by hour, outcome order by hour, outcome;
