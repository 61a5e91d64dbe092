-- Nothing that is asked for grows with the past: the newest come first out of an index, and sums are kept.
create index events_said_at on events (at, thread, seq) where said is not null;
alter index events_said set (gin_pending_list_limit = 256); -- every search reads what is not in the index's tree yet

create table spend_days (
    day           text collate "C" not null,
    agent         text collate "C" not null,
    model         text collate "C" not null,
    calls         bigint not null,
    input_tokens  bigint not null,
    output_tokens bigint not null,
    cached_tokens bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    usd           double precision not null,
    priced        bigint not null,
    primary key (day, agent, model)
);
alter table spend_days set (fillfactor = 80);
insert into spend_days
select day, agent, model, count(*), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(cache_write_tokens),
    sum(reasoning_tokens), coalesce(sum(usd), 0.0), count(usd)
from spend group by day, agent, model;
drop index spend_day;

create index threads_recent on threads (updated_at, thread);
drop index threads_updated;
create index threads_agent on threads (agent, updated_at, thread);
create index threads_channel on threads (rtrim(thread, replace(thread, ':', '')), updated_at, thread);
drop index threads_parent;
create index threads_parent on threads (rtrim(parent, replace(parent, ':', '')), updated_at, thread)
    where parent <> '';

drop index approvals_thread;
create index approvals_thread on approvals (thread, id);
create index approvals_call on approvals (thread, call_digest, id) where scope = 'thread';
drop index approvals_shown;
create index approvals_shown on approvals (shown_in, id) where shown_in <> '';

drop index audit_at;
create index audit_at on audit (at, chain, number);

create index processes_started on processes (started_at, id);
create index processes_at_work on processes (agent, thread) where state = 'running';
create index processes_told on processes (ended_at) where told = 1;

create index artifacts_newest on artifacts (thread, created_at desc, digest);
