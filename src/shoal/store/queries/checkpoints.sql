-- name: checkpoint_begin
-- A turn, or an undo, is about to change files.
insert into checkpoints (id, thread, workspace, author, turn_seq, before, after, began_at, undoes)
values (:id, :thread, :workspace, :author, coalesce((select t.turn_seq from threads t where t.thread = :thread), 0),
    :before, :after, :now, :undoes)
on conflict (id) do nothing;

-- name: checkpoint_end
-- The turn, or the undo, has ended; nothing where it had already.
update checkpoints set after = :after, ended_at = :now where id = :id and ended_at is null returning id;

-- name: checkpoint_one
-- What a turn, or an undo, did to files.
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

-- name: checkpoints_undoing
-- The undos that are under way, or were cut.
select id, thread, workspace, author, turn_seq, before, after, began_at, ended_at, undoes, undone_by from checkpoints
where ended_at is null and undoes <> '' order by id limit :limit;

-- name: checkpoint_undone
-- An undo begins or stands again; nothing where another one has already.
update checkpoints set undone_by = :undo where id = :id and undone_by = :before returning id;

-- name: checkpoint_again
-- What an undo had taken back stands again, since that undo is undone itself.
update checkpoints set undone_by = '' where id = :id and undone_by = :undo;

-- name: checkpoints_page
-- The next turns and undos, and when they began.
select id, began_at from checkpoints where id > :after order by id limit :limit;

-- name: checkpoints_forget
-- Delete those that began long ago and have ended.
delete from checkpoints where id > :after and id <= :upto and began_at < :before and ended_at is not null
returning workspace;

-- name: checkpoints_delete_thread
-- Forget what the turns and undos of a thread found and left; an undo that is under way goes on.
delete from checkpoints where thread = :thread and ended_at is not null;
