-- name: window_one
-- The window of a thread.
select thread, window_seq, last_seq, updated_at, case when open_turn <> '' or exists (
    select 1 from inbox where inbox.thread = threads.thread and inbox.state = 'pending') then 1 else 0 end
from threads where thread = :thread;

-- name: window_messages
-- The number of messages in a thread's window.
select count(*) from events
where thread = :thread and seq > (select window_seq from threads where thread = :thread)
    and type in ('user_message', 'assistant_message');
