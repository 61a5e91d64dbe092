-- name: thread_change
-- Change the given fields of a thread. Null leaves a field unchanged.
update threads set title = coalesce(cast(:title as text), title),
    titled = case when cast(:title as text) is null then titled else 'person' end,
    pinned = coalesce(cast(:pinned as integer), pinned), archived = coalesce(cast(:archived as integer), archived),
    agent = coalesce(cast(:agent as text), agent), model = coalesce(cast(:model as text), model)
where thread = :thread returning thread;

-- name: thread_untitled
-- Whether a thread's title is still its first words.
select 1 from threads where thread = :thread and titled = '';

-- name: thread_name
-- Set a generated title if no person has named the thread.
update threads set title = :title, titled = 'model' where thread = :thread and titled = '' returning thread;

-- name: threads_below
-- The threads that this thread's turns have begun.
select thread from threads
where rtrim(parent, replace(parent, ':', '')) = :channel and parent <> '' and parent || '' = :thread
order by updated_at desc, thread desc limit 10000;

-- name: thread_work
-- Lock a thread and return whether it is active.
select open_turn, last_seq, (select count(*) from inbox where inbox.thread = threads.thread and inbox.state = 'pending'),
    title
from threads where thread = :thread /*pg: for update */;

-- name: search_of_thread
-- A thread's rows of the search index, each with its event (PostgreSQL has none).
/*sqlite: select said.id, said.seq from search_words cross join search_events said on said.id = search_words.rowid */
/*sqlite: where search_words match :places and said.thread = :thread */;

-- name: search_delete
-- Delete a message from the search index, which needs the indexed text.
/*sqlite: insert into search_words (search_words, rowid, words, places) */
/*sqlite: values ('delete', :id, spread(:said), places(:thread)); */
/*sqlite: delete from search_events where id = :id */;

-- name: events_delete_thread
-- Delete a thread's journal.
delete from events where thread = :thread;

-- name: inbox_delete_thread
-- Delete a thread's messages from the mailbox.
delete from inbox where thread = :thread;

-- name: outbox_delete_thread
-- Delete a thread's posts.
delete from outbox where thread = :thread;

-- name: approvals_delete_thread
-- Delete a thread's approvals.
delete from approvals where thread = :thread;

-- name: staged_sets_delete_thread
-- Delete a thread's staged calls.
delete from staged_sets where thread = :thread;

-- name: steps_delete_thread
-- Delete a thread's step durations.
delete from thread_steps where thread = :thread;

-- name: artifacts_delete_thread
-- Delete the records of the results that a thread keeps.
delete from artifacts where thread = :thread;

-- name: snapshots_of_thread
-- The saved conversations of a thread.
select id, agent from snapshots where thread = :thread;

-- name: snapshots_delete_thread
-- Delete the records of a thread's saved conversations.
delete from snapshots where thread = :thread;

-- name: artifact_keepers
-- The threads that keep this content.
select thread from artifacts where digest = :digest limit 100;

-- name: thread_delete
-- Delete a thread.
delete from threads where thread = :thread;

-- name: spend_of_turn
-- The usage of a turn's model calls. Their ids begin with the turn's id.
select model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, usd
from spend
where id > :low and id < :high and thread = :thread limit 10000;

-- name: chat_after
-- The next channel with threads, by name.
select rtrim(thread, replace(thread, ':', '')) from threads
where rtrim(thread, replace(thread, ':', '')) > :after order by rtrim(thread, replace(thread, ':', '')) limit 1;

-- name: chat_newest
-- The most recently active thread of a channel.
select thread, title, last_seq, updated_at from threads
where rtrim(thread, replace(thread, ':', '')) = :channel order by updated_at desc, thread desc limit 1;
