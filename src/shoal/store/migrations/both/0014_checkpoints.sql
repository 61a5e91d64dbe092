-- How a turn, or an undo, found a workspace and left it, by the digests of trees (empty: not kept). An undo names in
-- `undoes` what it took back, and is under way while it has no end.
create table checkpoints (
    id        text /*pg: collate "C" */ primary key,
    thread    text not null,
    workspace text not null,
    author    text not null,
    turn_seq  bigint not null,
    before    text not null,
    after     text not null default '',
    began_at  bigint not null,
    ended_at  bigint,
    undoes    text not null default '',
    undone_by text not null default ''
);
create index checkpoints_of_thread on checkpoints (thread, id);
create index checkpoints_of_workspace on checkpoints (workspace, id);
create index checkpoints_undoing on checkpoints (id) where ended_at is null and undoes <> '';
