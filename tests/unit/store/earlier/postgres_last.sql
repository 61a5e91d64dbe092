-- The tables of the spine: threads, mailbox, journal, outbox, approvals, audit, triggers, spend.
-- Times are microseconds since 1970 (UTC). JSON is text. Ids compare by their bytes, as SQLite compares them.
create table threads (
    thread      text collate "C" primary key,
    agent       text collate "C" not null default '',
    title       text not null default '',
    parent      text not null default '',
    epoch       bigint not null default 0,
    last_seq    bigint not null default 0,
    window_seq  bigint not null default 0,
    open_turn   text not null default '',
    turn_seq    bigint not null default 0,
    aborting    text not null default '',
    created_at  bigint not null,
    updated_at  bigint not null
);
create index threads_updated on threads (updated_at);
create index threads_open on threads (open_turn) where open_turn <> '';

create table inbox (
    id       bigint generated always as identity primary key,
    platform text collate "C" not null,
    key      text collate "C" not null,
    thread   text collate "C" not null,
    lane     text not null,
    state    text not null default 'pending',
    payload  text not null,
    at       bigint not null,
    unique (platform, key)
);
create index inbox_pending on inbox (thread, id) where state = 'pending';

create table events (
    thread text collate "C" not null,
    seq    bigint not null,
    turn   text not null,
    type   text not null,
    at     bigint not null,
    data   text not null,
    -- What was said, for full text search. The first 50,000 characters; a NUL, which jsonb refuses, counts as a space.
    said   tsvector generated always as (
        case when type in ('user_message', 'steered', 'assistant_message') then to_tsvector(
            'simple'::regconfig, left(replace(data, '\u0000', '\u0020')::jsonb ->> 'text', 50000)
        ) end
    ) stored,
    primary key (thread, seq)
);
create index events_said on events using gin (said) where said is not null;

create table outbox (
    number     bigint generated always as identity primary key,
    id         text collate "C" not null unique,
    platform   text collate "C" not null,
    thread     text collate "C" not null,
    payload    text not null,
    state      text not null default 'pending',
    part       bigint not null default 0,
    attempts   bigint not null default 0,
    maybe_sent bigint not null default 0,
    due_at     bigint not null,
    created_at bigint not null,
    error      text not null default ''
);
create index outbox_waiting on outbox (platform, due_at) where state in ('pending', 'sending');
create index outbox_thread on outbox (thread, number) where state in ('pending', 'sending');

create table posted (
    platform   text collate "C" not null,
    message_id text collate "C" not null,
    thread     text collate "C" not null,
    post       text collate "C" not null,
    part       bigint not null,
    at         bigint not null,
    primary key (platform, message_id, thread)
);
create index posted_post on posted (post, part);

create table approvals (
    id         text collate "C" primary key,
    thread     text collate "C" not null,
    turn       text not null,
    call_id    text not null,
    tool       text not null,
    actions    text not null,
    digest     text collate "C" not null,
    shown      text not null,
    asked_by   text not null,
    reason     text not null default '',
    state      text not null default 'pending',
    scope      text not null default 'once',
    decided_by text not null default '',
    created_at bigint not null,
    expires_at bigint not null,
    decided_at bigint
);
create index approvals_pending on approvals (expires_at) where state = 'pending';
create index approvals_thread on approvals (thread, digest);

create table audit (
    chain    text collate "C" not null,
    number   bigint not null,
    at       bigint not null,
    entry    text not null,
    previous text not null,
    hash     text not null,
    primary key (chain, number)
);
create index audit_at on audit (at);

create table chains (
    chain  text collate "C" primary key,
    number bigint not null,
    head   text not null
);

create table triggers (
    id         text collate "C" primary key,
    spec       text not null,
    state      text not null default 'active',
    next_at    bigint,
    last_at    bigint,
    failures   bigint not null default 0,
    error      text not null default '',
    created_at bigint not null
);
create index triggers_due on triggers (next_at) where state = 'active';

create table occurrences (
    key        text collate "C" primary key,
    trigger_id text not null,
    due_at     bigint not null,
    state      text not null,
    at         bigint not null
);

create table spend (
    id            text collate "C" primary key,
    thread        text not null,
    turn          text not null,
    day           text collate "C" not null,
    agent         text collate "C" not null,
    user_id       text not null,
    model         text collate "C" not null,
    input_tokens  bigint not null,
    output_tokens bigint not null,
    cached_tokens bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens bigint not null,
    usd           double precision,
    at            bigint not null
);
create index spend_day on spend (day);

create table thread_steps (
    thread      text collate "C" not null,
    turn        text not null,
    number      bigint not null,
    description text not null,
    started_at  bigint not null,
    duration_ms bigint not null
);
create index thread_steps_thread on thread_steps (thread, started_at);

create table artifacts (
    thread     text collate "C" not null,
    digest     text collate "C" not null,
    name       text not null,
    size_bytes bigint not null,
    turn       text not null,
    call_id    text not null,
    tainted_by text not null,
    created_at bigint not null,
    primary key (thread, digest)
);
create index artifacts_made on artifacts (created_at);
create index artifacts_digest on artifacts (digest);

create table snapshots (
    id          text collate "C" primary key,
    thread      text collate "C" not null,
    agent       text collate "C" not null,
    description text not null,
    messages    bigint not null,
    created_at  bigint not null
);
create index snapshots_agent on snapshots (agent, id);

create table settings (
    scope text collate "C" not null,
    key   text collate "C" not null,
    value text not null,
    primary key (scope, key)
);

create table prompts (
    digest text collate "C" primary key,
    body   text not null,
    at     bigint not null
);

-- Rows of these change in place all the time; room on their pages keeps that cheap.
alter table threads set (fillfactor = 80);
alter table inbox set (fillfactor = 80);
alter table outbox set (fillfactor = 80);

-- Defers the job that advances a thread, unless one waits already; in the transaction that made the work.
create function shoal_wake(thread text) returns void language sql as $$
    insert into procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    values ('shoal', 'shoal.advance', thread, thread, jsonb_build_object('thread', thread))
    on conflict (queueing_lock) where status = 'todo' do nothing
$$;

create table budget (
    scope      text not null,
    day        text not null,
    usd        double precision not null,
    tokens     bigint not null,
    usd_max    double precision not null,
    tokens_max bigint not null,
    primary key (scope, day)
);
create index budget_day on budget (day);

create table reservations (
    id         text primary key,
    keys       text not null,
    usd        double precision not null,
    tokens     bigint not null,
    expires_at bigint not null
);
create index reservations_lapsing on reservations (expires_at);
