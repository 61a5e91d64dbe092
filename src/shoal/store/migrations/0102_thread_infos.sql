-- A thread as lists show it, with the fields of ThreadInfo in their order.
create view thread_infos as
select thread, agent, last_seq, created_at, updated_at, title, open_turn,
    (select count(*) from inbox
        where inbox.thread = threads.thread and inbox.state = 'pending' and inbox.lane = 'prompt') as queued,
    parent, retry_at, pinned, archived, model
from threads;
