-- What can be recalled, in pieces: files that were read (with what was wrong with those that could not be), and, where
-- recall by meaning is set up, messages, of which only the place stands here. `person` is whose alone a piece is.
create table recall_sources (
    source  text /*pg: collate "C" */ primary key,
    stamp   text not null,
    problem text not null
);

create table recall_pieces (
    /*sqlite: id integer primary key autoincrement, */
    /*pg: id bigint generated always as identity primary key, */
    source   text /*pg: collate "C" */ not null,
    place    text not null,
    text     text not null,
    person   text not null,
    embedded bigint not null default 0
);
create index recall_pieces_source on recall_pieces (source, id);
create index recall_waiting on recall_pieces (id) where embedded = 0;

-- The pieces' vectors, numbered in the order in which they came, so that a process reads each once.
create table recall_vectors (
    /*sqlite: number integer primary key autoincrement, */
    /*pg: number bigint generated always as identity primary key, */
    piece  bigint not null unique,
    vector text not null
);
