-- name: conversations_page
-- Return the next stored beginnings of conversations, with the times of their threads' last activity.
select s.key, coalesce(t.updated_at, 0)
from settings s left join threads t on t.thread = s.value
where s.scope = 'openai' and s.key > :after order by s.key limit :limit;

-- name: conversations_forget
-- Delete stored beginnings of inactive conversations. A call that continues one sends its whole history.
delete from settings where scope = 'openai' and key in (
    select s.key from settings s left join threads t on t.thread = s.value
    where s.scope = 'openai' and s.key > :after and s.key <= :upto and coalesce(t.updated_at, 0) < :before
    /*pg: for update of s skip locked */)
returning key;
