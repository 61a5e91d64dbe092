-- Nothing that is asked for grows with the past: the newest come first out of an index, and sums are kept.
-- The search index has no copy of the text; its rows are in the order in which things were said, and `places` are the
-- thread and its channel as words (store/search.py).
create table search_events (
    id     integer primary key,
    thread text not null,
    seq    integer not null
);
create virtual table search_words using fts5(
    words, places, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2'
);
insert into search_events (thread, seq)
select thread, seq from events
where type in ('user_message', 'steered', 'assistant_message') and substr(data, 1, 10) <> '{"text":""'
order by at, thread, seq;
insert into search_words (rowid, words, places)
select said.id, spread(json_extract(replace(events.data, '\u0000', '\u0020'), '$.text')), places(said.thread)
from search_events said join events on events.thread = said.thread and events.seq = said.seq order by said.id;
drop table search;

create table spend_days (
    day           text not null,
    agent         text not null,
    model         text not null,
    calls         integer not null,
    input_tokens  integer not null,
    output_tokens integer not null,
    cached_tokens integer not null,
    cache_write_tokens integer not null,
    reasoning_tokens   integer not null,
    usd           real not null,
    priced        integer not null,
    primary key (day, agent, model)
) without rowid;
insert into spend_days
select day, agent, model, count(*), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(cache_write_tokens),
    sum(reasoning_tokens), coalesce(sum(usd), 0.0), count(usd)
from spend group by day, agent, model;
drop index spend_day;

create index threads_agent on threads (agent, updated_at);
create index threads_channel on threads (rtrim(thread, replace(thread, ':', '')), updated_at);
drop index threads_parent;
create index threads_parent on threads (rtrim(parent, replace(parent, ':', '')), updated_at) where parent <> '';

drop index approvals_thread;
create index approvals_thread on approvals (thread);
create index approvals_call on approvals (thread, call_digest) where scope = 'thread';

drop index audit_at;
create index audit_at on audit (at, chain, number);

create index processes_started on processes (started_at);
create index processes_at_work on processes (agent, thread) where state = 'running';
create index processes_told on processes (ended_at) where told = 1;

create index artifacts_newest on artifacts (thread, created_at desc, digest);
