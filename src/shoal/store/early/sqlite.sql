-- Columns that tables of the earliest homes lack, and an index of what was said that knows scripts without spaces.
alter table outbox add column claims integer not null default 0;
alter table approvals add column shown_in text not null default '';
drop trigger if exists events_search;
drop table if exists search;
create virtual table search using fts5(
    words, thread unindexed, seq unindexed, tokenize = 'unicode61 remove_diacritics 2'
);
insert into search (words, thread, seq)
select spread(json_extract(replace(data, '\u0000', '\u0020'), '$.text')), thread, seq from events
where type in ('user_message', 'steered', 'assistant_message') and substr(data, 1, 10) <> '{"text":""';
