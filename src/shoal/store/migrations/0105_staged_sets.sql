-- The calls that a turn has staged, as the message that runs the accepted ones once its card is decided (JSON).
create table staged_sets (
    card       text /*pg: collate "C" */ primary key,
    thread     text /*pg: collate "C" */ not null,
    prompt     text not null,
    created_at bigint not null
) /*sqlite: without rowid */;
create index staged_sets_thread on staged_sets (thread);
