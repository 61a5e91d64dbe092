-- name: comparison_put
-- Store a comparison. An existing one gets the new calls, number of runs and cost limit.
insert into comparisons (id, created_at, wanted, usd_max, steps) values (:id, :now, :wanted, :usd_max, :steps)
on conflict (id) do update set wanted = :wanted, usd_max = :usd_max, steps = :steps;

-- name: comparison_one
-- Return a comparison.
select id, created_at, wanted, usd_max, steps from comparisons where id = :id;

-- name: comparisons_newest
-- Return the newest comparisons. People create and delete them, so there are few.
select id, created_at, wanted, usd_max, steps from comparisons order by created_at desc, id limit :limit;

-- name: comparison_delete
-- Delete a comparison.
delete from comparisons where id = :id returning id;

-- name: comparison_spent_delete
-- Delete the spending of a comparison.
delete from budget where scope = :scope and day = '';

-- name: answer_put
-- Store an answer. It replaces an earlier failure.
insert into comparison_answers (key, thread, answer) values (:key, :thread, :answer)
on conflict (key) do update set answer = :answer;

-- name: answers_of
-- Return the answers of a comparison.
select key, answer from comparison_answers where key > :low and key < :high order by key limit :limit;

-- name: answers_delete
-- Delete the answers of a comparison.
delete from comparison_answers where key > :low and key < :high;

-- name: answers_delete_thread
-- Delete the models' answers to calls of a deleted thread.
delete from comparison_answers where thread = :thread;
