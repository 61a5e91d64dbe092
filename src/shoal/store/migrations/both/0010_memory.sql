-- What was changed of memory files and daily notes: the lines that stood there, and those that took their place.
create table memory_changes (
    id         text /*pg: collate "C" */ primary key,
    at         bigint not null,
    file       text not null,
    line       bigint not null,
    removed    text not null,
    added      text not null,
    person     text not null,
    changed_by text not null,
    agent      text not null,
    thread     text not null,
    tainted_by text not null,
    undone     bigint not null default 0
);
