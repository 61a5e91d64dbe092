-- name: memory_insert
-- Note a change of a memory file before it is made.
insert into memory_changes (id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by)
values (:id, :at, :file, :line, :removed, :added, :person, :changed_by, :agent, :thread, :tainted_by);

-- name: memory_drop
-- Take back the note of a change that was not made.
delete from memory_changes where id = :id;

-- name: memory_one
-- One change of memory.
select id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by, undone from memory_changes
where id = :id;

-- name: memory_changes
-- The changes of memory below this id, the newest first.
select id, at, file, line, removed, added, person, changed_by, agent, thread, tainted_by, undone from memory_changes
where id < :below order by id desc limit :limit;

-- name: memory_undone
-- Note that a change was taken back.
update memory_changes set undone = 1 where id = :id;

-- name: memory_page
-- The next changes of memory, and when they were made.
select id, at from memory_changes where id > :after order by id limit :limit;

-- name: memory_forget
-- Delete changes of memory that were made long ago.
delete from memory_changes where id > :after and id <= :upto and at < :before returning id;
