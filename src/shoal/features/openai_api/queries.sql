-- name: conversations_page
-- The next beginnings by which the API knows its conversations, and when their threads were last active.
select s.key, coalesce(t.updated_at, 0)
from settings s left join threads t on t.thread = s.value
where s.scope = 'openai' and s.key > :after order by s.key limit :limit;

-- name: conversations_forget
-- Delete beginnings of conversations that nobody went on with: one that goes on after all brings its own past along.
delete from settings where scope = 'openai' and key in (
    select s.key from settings s left join threads t on t.thread = s.value
    where s.scope = 'openai' and s.key > :after and s.key <= :upto and coalesce(t.updated_at, 0) < :before
    /*pg: for update of s skip locked */)
returning key;
