-- name: thread_change
-- Change what people keep of a thread; null leaves a thing as it is.
update threads set title = coalesce(cast(:title as text), title),
    titled = case when cast(:title as text) is null then titled else 'person' end,
    pinned = coalesce(cast(:pinned as integer), pinned), archived = coalesce(cast(:archived as integer), archived),
    agent = coalesce(cast(:agent as text), agent), model = coalesce(cast(:model as text), model)
where thread = :thread returning thread;

-- name: thread_untitled
-- Whether a thread still goes by its first words.
select 1 from threads where thread = :thread and titled = '';

-- name: thread_name
-- Give a thread that nobody has named the title that its model found.
update threads set title = :title, titled = 'model' where thread = :thread and titled = '' returning thread;

-- name: threads_below
-- The threads that calls of this one's turns have begun.
select thread from threads
where rtrim(parent, replace(parent, ':', '')) = :channel and parent <> '' and parent || '' = :thread
order by updated_at desc, thread desc limit 10000;

-- name: thread_work
-- Lock a thread, and see whether it has something to do.
select open_turn, last_seq, (select count(*) from inbox where inbox.thread = threads.thread and inbox.state = 'pending'),
    title
from threads where thread = :thread /*pg: for update */;

-- name: search_of_thread
-- A thread's rows of the search index, each with its event (PostgreSQL has none).
/*sqlite: select said.id, said.seq from search_words cross join search_events said on said.id = search_words.rowid */
/*sqlite: where search_words match :places and said.thread = :thread */;

-- name: search_delete
-- Take what was said out of the search index, which has to be told what it was.
/*sqlite: insert into search_words (search_words, rowid, words, places) */
/*sqlite: values ('delete', :id, spread(:said), places(:thread)); */
/*sqlite: delete from search_events where id = :id */;

-- name: events_delete_thread
-- Delete a thread's journal.
delete from events where thread = :thread;

-- name: inbox_delete_thread
-- Delete the messages that were taken in for a thread.
delete from inbox where thread = :thread;

-- name: outbox_delete_thread
-- Delete what a thread has posted, or was to post.
delete from outbox where thread = :thread;

-- name: approvals_delete_thread
-- Delete what was asked of people in a thread.
delete from approvals where thread = :thread;

-- name: staged_sets_delete_thread
-- Delete what a thread's turns have staged.
delete from staged_sets where thread = :thread;

-- name: steps_delete_thread
-- Delete how long a thread's steps took.
delete from thread_steps where thread = :thread;

-- name: artifacts_delete_thread
-- Forget the results that a thread keeps whole.
delete from artifacts where thread = :thread;

-- name: snapshots_of_thread
-- The saved conversations of a thread.
select id, agent from snapshots where thread = :thread;

-- name: snapshots_delete_thread
-- Forget the saved conversations of a thread.
delete from snapshots where thread = :thread;

-- name: artifact_keepers
-- The threads that keep this content.
select thread from artifacts where digest = :digest limit 100;

-- name: thread_delete
-- Delete a thread.
delete from threads where thread = :thread;

-- name: spend_of_turn
-- What a turn's model calls took: their ids begin with the turn's.
select model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, usd
from spend
where id > :low and id < :high and thread = :thread limit 10000;

-- name: chat_after
-- The next channel, by name, in which there are threads.
select rtrim(thread, replace(thread, ':', '')) from threads
where rtrim(thread, replace(thread, ':', '')) > :after order by rtrim(thread, replace(thread, ':', '')) limit 1;

-- name: chat_newest
-- The thread of a channel that was active last.
select thread, title, last_seq, updated_at from threads
where rtrim(thread, replace(thread, ':', '')) = :channel order by updated_at desc, thread desc limit 1;
