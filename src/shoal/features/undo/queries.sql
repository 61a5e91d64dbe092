-- name: checkpoints_undoing
-- Return the undos that are running or were interrupted.
select id, thread, workspace, author, turn_seq, before, after, began_at, ended_at, undoes, undone_by from checkpoints
where ended_at is null and undoes <> '' order by id limit :limit;

-- name: checkpoint_undone
-- Record that an undo begins or applies again. Does nothing if another undo came first.
update checkpoints set undone_by = :undo where id = :id and undone_by = :before returning id;

-- name: checkpoint_again
-- Restore the effect of a turn or an undo, because its undo is itself undone.
update checkpoints set undone_by = '' where id = :id and undone_by = :undo;
