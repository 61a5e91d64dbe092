-- name: comparison_put
-- Keep a comparison; one that is there gets the calls, the runs and the ceiling that are wanted now.
insert into comparisons (id, created_at, wanted, usd_max, steps) values (:id, :now, :wanted, :usd_max, :steps)
on conflict (id) do update set wanted = :wanted, usd_max = :usd_max, steps = :steps;

-- name: comparison_one
-- A comparison.
select id, created_at, wanted, usd_max, steps from comparisons where id = :id;

-- name: comparisons_newest
-- The newest comparisons; people make and remove them one by one.
select id, created_at, wanted, usd_max, steps from comparisons order by created_at desc, id limit :limit;

-- name: comparison_delete
-- Remove a comparison.
delete from comparisons where id = :id returning id;

-- name: comparison_spent_delete
-- Forget what a comparison has spent.
delete from budget where scope = :scope and day = '';

-- name: answer_put
-- Keep an answer; one that failed before is replaced.
insert into comparison_answers (key, thread, answer) values (:key, :thread, :answer)
on conflict (key) do update set answer = :answer;

-- name: answers_of
-- The answers of a comparison.
select key, answer from comparison_answers where key > :low and key < :high order by key limit :limit;

-- name: answers_delete
-- Remove the answers of a comparison.
delete from comparison_answers where key > :low and key < :high;

-- name: answers_delete_thread
-- Remove what models answered to a thread that is deleted.
delete from comparison_answers where thread = :thread;
