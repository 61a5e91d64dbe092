-- The tables of the spine: threads, mailbox, journal, outbox, approvals, audit, triggers, spend.
-- Times are microseconds since 1970 (UTC). JSON is text.
create table threads (
    thread      text primary key,
    agent       text not null default '',
    title       text not null default '',
    parent      text not null default '',
    epoch       integer not null default 0,
    last_seq    integer not null default 0,
    window_seq  integer not null default 0,
    open_turn   text not null default '',
    turn_seq    integer not null default 0,
    aborting    text not null default '',
    created_at  integer not null,
    updated_at  integer not null
) without rowid;
create index threads_updated on threads (updated_at);
create index threads_open on threads (open_turn) where open_turn <> '';

create table inbox (
    id       integer primary key,
    platform text not null,
    key      text not null,
    thread   text not null,
    lane     text not null,
    state    text not null default 'pending',
    payload  text not null,
    at       integer not null,
    unique (platform, key)
);
create index inbox_pending on inbox (thread, id) where state = 'pending';

create table events (
    thread text not null,
    seq    integer not null,
    turn   text not null,
    type   text not null,
    at     integer not null,
    data   text not null,
    primary key (thread, seq)
) without rowid;

-- What was said, for full text search; filled with the events, in their transaction. A NUL counts as a space.
create virtual table search using fts5(
    words, thread unindexed, seq unindexed, tokenize = 'unicode61 remove_diacritics 2'
);
create trigger events_search after insert on events
when new.type in ('user_message', 'steered', 'assistant_message') and substr(new.data, 1, 10) <> '{"text":""' begin
    insert into search (words, thread, seq)
    values (json_extract(replace(new.data, '\u0000', '\u0020'), '$.text'), new.thread, new.seq);
end;

create table outbox (
    number     integer primary key,
    id         text not null unique,
    platform   text not null,
    thread     text not null,
    payload    text not null,
    state      text not null default 'pending',
    part       integer not null default 0,
    attempts   integer not null default 0,
    maybe_sent integer not null default 0,
    due_at     integer not null,
    created_at integer not null,
    error      text not null default ''
);
create index outbox_waiting on outbox (platform, due_at) where state in ('pending', 'sending');
create index outbox_thread on outbox (thread, number) where state in ('pending', 'sending');

create table posted (
    platform   text not null,
    message_id text not null,
    thread     text not null,
    post       text not null,
    part       integer not null,
    at         integer not null,
    primary key (platform, message_id, thread)
) without rowid;
create index posted_post on posted (post, part);

create table approvals (
    id         text primary key,
    thread     text not null,
    turn       text not null,
    call_id    text not null,
    tool       text not null,
    actions    text not null,
    digest     text not null,
    shown      text not null,
    asked_by   text not null,
    reason     text not null default '',
    state      text not null default 'pending',
    scope      text not null default 'once',
    decided_by text not null default '',
    created_at integer not null,
    expires_at integer not null,
    decided_at integer
) without rowid;
create index approvals_pending on approvals (expires_at) where state = 'pending';
create index approvals_thread on approvals (thread, digest);

create table audit (
    chain    text not null,
    number   integer not null,
    at       integer not null,
    entry    text not null,
    previous text not null,
    hash     text not null,
    primary key (chain, number)
) without rowid;
create index audit_at on audit (at);

create table chains (
    chain  text primary key,
    number integer not null,
    head   text not null
) without rowid;

create table triggers (
    id         text primary key,
    spec       text not null,
    state      text not null default 'active',
    next_at    integer,
    last_at    integer,
    failures   integer not null default 0,
    error      text not null default '',
    created_at integer not null
) without rowid;
create index triggers_due on triggers (next_at) where state = 'active';

create table occurrences (
    key        text primary key,
    trigger_id text not null,
    due_at     integer not null,
    state      text not null,
    at         integer not null
) without rowid;

create table spend (
    id            text primary key,
    thread        text not null,
    turn          text not null,
    day           text not null,
    agent         text not null,
    user_id       text not null,
    model         text not null,
    input_tokens  integer not null,
    output_tokens integer not null,
    cached_tokens integer not null,
    cache_write_tokens integer not null,
    reasoning_tokens integer not null,
    usd           real,
    at            integer not null
) without rowid;
create index spend_day on spend (day);

create table thread_steps (
    thread      text not null,
    turn        text not null,
    number      integer not null,
    description text not null,
    started_at  integer not null,
    duration_ms integer not null
);
create index thread_steps_thread on thread_steps (thread, started_at);

create table artifacts (
    thread     text not null,
    digest     text not null,
    name       text not null,
    size_bytes integer not null,
    turn       text not null,
    call_id    text not null,
    tainted_by text not null,
    created_at integer not null,
    primary key (thread, digest)
) without rowid;
create index artifacts_made on artifacts (created_at);
create index artifacts_digest on artifacts (digest);

create table snapshots (
    id          text primary key,
    thread      text not null,
    agent       text not null,
    description text not null,
    messages    integer not null,
    created_at  integer not null
) without rowid;
create index snapshots_agent on snapshots (agent, id);

create table settings (
    scope text not null,
    key   text not null,
    value text not null,
    primary key (scope, key)
) without rowid;

create table prompts (
    digest text primary key,
    body   text not null,
    at     integer not null
);

create table budget (
    scope      text not null,
    day        text not null,
    usd        real not null,
    tokens     integer not null,
    usd_max    real not null,
    tokens_max integer not null,
    primary key (scope, day)
) without rowid;
create index budget_day on budget (day);

create table reservations (
    id         text primary key,
    keys       text not null,
    usd        real not null,
    tokens     integer not null,
    expires_at integer not null
) without rowid;
create index reservations_lapsing on reservations (expires_at);
