-- A conversation can go on from an earlier event: where its current branch begins, and what it is found by.
alter table threads add column branch_seq bigint not null default 0;
create index events_branched on events (thread, seq) where type = 'branched';
create index events_window on events (thread, seq) where type in ('cleared', 'compacted');
