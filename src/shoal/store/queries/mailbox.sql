-- name: thread_ensure
-- Create the thread's row if it is new, and lock it for the transaction.
insert into threads (thread, agent, title, created_at, updated_at)
values (:thread, :agent, :title, :now, :now)
on conflict (thread) do update set updated_at = excluded.updated_at;

-- name: inbox_insert
-- Store a message once per platform and key. Returns nothing for a duplicate.
insert into inbox (platform, key, thread, lane, payload, at)
values (:platform, :key, :thread, :lane, :payload, :now)
on conflict (platform, key) do nothing
/*pg: returning id */ /*sqlite: ; select last_insert_rowid() where changes() > 0 */;

-- name: inbox_count
-- The number of prompts that wait for a thread.
select count(*) from inbox where thread = :thread and state = 'pending' and lane = 'prompt';

-- name: inbox_delete
-- Delete a refused message.
delete from inbox where id = :id;

-- name: inbox_known
-- Whether a message was already accepted.
select 1 from inbox where platform = :platform and key = :key;

-- name: inbox_one
-- A message by its key.
select id, state, payload, thread from inbox where platform = :platform and key = :key;

-- name: inbox_replace
-- Change the text of a message, and return whether it still waits.
update inbox set payload = :payload, state = :state where id = :id;

-- name: inbox_thread
-- The thread of a message by its key.
select thread from inbox where platform = :platform and key = :key and substr(thread, 1, length(:channel)) = :channel;

-- name: posted_thread
-- The thread of a message that the bot posted.
select thread from posted
where platform = :platform and message_id = :message_id and substr(thread, 1, length(:channel)) = :channel
order by at desc limit 1;

-- name: inbox_queue
-- The prompts to answer next.
select payload, at from inbox where thread = :thread and state = 'pending' and lane = 'prompt' order by id limit :limit;

-- name: inbox_pending
-- All waiting messages, including those for the running turn.
select payload from inbox where thread = :thread and state = 'pending' order by id limit :limit;

-- name: inbox_take
-- Move a prompt from the mailbox into its turn.
update inbox set state = 'taken' where platform = :platform and key = :key and state = 'pending'
/*pg: returning payload */
/*sqlite: ; select payload from inbox where platform = :platform and key = :key and changes() > 0 */;

-- name: inbox_steers
-- Messages for the running turn, oldest first.
select id, lane, payload from inbox
where thread = :thread and state = 'pending' and lane in ('steer', 'follow_up') order by id;

-- name: inbox_taken
-- Mark a message as taken by its turn.
update inbox set state = 'taken' where id = :id;

-- name: inbox_drop_steers
-- Drop the messages for a stopped turn.
update inbox set state = 'dropped' where thread = :thread and state = 'pending' and lane in ('steer', 'follow_up');

-- name: inbox_promote_steers
-- Let the messages for a failed turn start the next one.
update inbox set lane = 'prompt' where thread = :thread and state = 'pending' and lane in ('steer', 'follow_up');

-- name: inbox_drop_prompts
-- Empty a mailbox.
update inbox set state = 'dropped' where thread = :thread and state = 'pending' and lane = 'prompt' returning payload;

-- name: inbox_drop_one
-- Drop a message without an answer.
update inbox set state = 'dropped' where platform = :platform and key = :key and state = 'pending'
returning payload;

-- name: inbox_waiting
-- Threads with an open turn or a waiting prompt.
select thread from threads where open_turn <> ''
union
select thread from inbox where state = 'pending' and lane = 'prompt';

-- name: inbox_backlog
-- The number of prompts in all mailboxes, and the time of the oldest.
select count(*), min(at) from inbox where state = 'pending' and lane = 'prompt';

-- name: turns_open
-- The number of open turns.
select count(*) from threads where open_turn <> '';

-- name: thread_abort
-- Mark the open turn as stopped by a person.
update threads set aborting = open_turn where thread = :thread and open_turn <> '' returning open_turn;

-- name: wake
-- Wake a thread's worker in the same transaction. Does nothing with a single process.
/*pg: select from shoal_wake(:thread) */;

-- name: inbox_missed
-- Record a message that was backfilled. Does nothing if the mailbox has already received it.
insert into inbox (platform, key, thread, lane, state, payload, at)
values (:platform, :key, :thread, 'prompt', 'taken', :payload, :now)
on conflict (platform, key) do nothing
returning key;

-- name: posted_one
-- The post that a platform's message shows, if the bot posted it.
select post from posted where platform = :platform and message_id = :message_id and thread = :thread;
