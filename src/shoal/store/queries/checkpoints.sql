-- name: checkpoint_begin
-- Record that a turn or an undo is about to change files.
insert into checkpoints (id, thread, workspace, author, turn_seq, before, after, began_at, undoes)
values (:id, :thread, :workspace, :author, coalesce((select t.turn_seq from threads t where t.thread = :thread), 0),
    :before, :after, :now, :undoes)
on conflict (id) do nothing;

-- name: checkpoint_end
-- Record the end of a turn or an undo. Does nothing if it has already ended.
update checkpoints set after = :after, ended_at = :now where id = :id and ended_at is null returning id;

-- name: checkpoint_one
-- The file changes of a turn or an undo.
select id, thread, workspace, author, turn_seq, before, after, began_at, ended_at, undoes, undone_by from checkpoints
where id = :id;

-- name: checkpoints_of
-- The newest turns and undos of a thread.
select id, thread, workspace, author, turn_seq, before, after, began_at, ended_at, undoes, undone_by from checkpoints
where thread = :thread order by id desc limit :limit;

-- name: checkpoints_in
-- The newest turns and undos of a workspace below an id.
select id, thread, workspace, author, turn_seq, before, after, began_at, ended_at, undoes, undone_by from checkpoints
where workspace = :workspace and id < :below order by id desc limit :limit;

-- name: checkpoints_page
-- The next turns and undos, with their start times.
select id, began_at from checkpoints where id > :after order by id limit :limit;

-- name: checkpoints_forget
-- Delete ended turns and undos that began before a time.
delete from checkpoints where id > :after and id <= :upto and began_at < :before and ended_at is not null
returning workspace;

-- name: checkpoints_delete_thread
-- Delete the file changes of a thread's turns and undos. A running undo continues.
delete from checkpoints where thread = :thread and ended_at is not null;
