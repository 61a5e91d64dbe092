-- name: memory_insert
-- Record a change of a memory file before it is made.
insert into memory_changes (id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by)
values (:id, :at, :file, :line, :removed, :added, :person, :changed_by, :agent, :thread, :tainted_by);

-- name: memory_drop
-- Delete the record of a change that was not made.
delete from memory_changes where id = :id;

-- name: memory_one
-- Return a change of memory.
select id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by, undone from memory_changes
where id = :id;

-- name: memory_changes
-- Return the changes of memory below this id, newest first.
select id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by, undone from memory_changes
where id < :below order by id desc limit :limit;

-- name: memory_undone
-- Record that a change was undone.
update memory_changes set undone = 1 where id = :id;

-- name: memory_page
-- Return the next changes of memory with their times.
select id, at from memory_changes where id > :after order by id limit :limit;

-- name: memory_forget
-- Delete old changes of memory.
delete from memory_changes where id > :after and id <= :upto and at < :before returning id;
