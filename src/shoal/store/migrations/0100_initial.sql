-- The tables of the first release, for both databases. `/*pg: … */` counts in PostgreSQL only, `/*sqlite: … */` in
-- SQLite only. The next migration adds what each database does in its own way, such as full-text search.
--
-- Times are microseconds since 1970 (UTC). JSON is text. Ids compare by their bytes: collation "C" of PostgreSQL. In
-- SQLite an index of a table without a rowid contains the primary key already.

-- ---- conversations ----

-- A thread is one conversation. `epoch` is the number of its newest lease and `last_seq` that of its newest event. The
-- model sees what follows `window_seq`, on the branch that begins at `branch_seq`.
create table threads (
    thread       text /*pg: collate "C" */ primary key,
    agent        text /*pg: collate "C" */ not null default '',
    parent       text not null default '',
    title        text not null default '',
    titled       text not null default '', -- who chose the title; empty: it is the first words
    pinned       integer not null default 0,
    archived     integer not null default 0,
    model        text not null default '', -- empty: the agent's model
    epoch        bigint not null default 0,
    last_seq     bigint not null default 0,
    window_seq   bigint not null default 0,
    branch_seq   bigint not null default 0,
    open_turn    text not null default '',
    turn_seq     bigint not null default 0,
    aborting     text not null default '',
    retry_at     bigint, -- when the open turn asks its model again
    retry_set_at bigint, -- later than now: the clock was set back
    created_at   bigint not null,
    updated_at   bigint not null
) /*sqlite: without rowid */;
/*sqlite: create index threads_updated on threads (updated_at); */
/*pg: create index threads_recent on threads (updated_at, thread); */
create index threads_pinned on threads (updated_at, thread) where pinned = 1;
create index threads_archived on threads (updated_at, thread) where archived = 1;
create index threads_agent on threads (agent, updated_at /*pg: , thread */);
create index threads_channel on threads (rtrim(thread, replace(thread, ':', '')), updated_at /*pg: , thread */);
create index threads_parent on threads (rtrim(parent, replace(parent, ':', '')), updated_at /*pg: , thread */)
    where parent <> '';
create index threads_open on threads (open_turn) where open_turn <> '';
create index threads_retry on threads (retry_at) where retry_at is not null;

-- The mailbox. `key` makes a message that its platform delivers twice count once.
create table inbox (
    /*sqlite: id integer primary key, */
    /*pg: id bigint generated always as identity primary key, */
    platform text /*pg: collate "C" */ not null,
    key      text /*pg: collate "C" */ not null,
    thread   text /*pg: collate "C" */ not null,
    lane     text not null,
    state    text not null default 'pending',
    payload  text not null,
    at       bigint not null,
    unique (platform, key)
);
create index inbox_pending on inbox (thread, id) where state = 'pending';

-- The journal: what happened in each thread, numbered from 1 without gaps. Rows are only added.
create table events (
    thread text /*pg: collate "C" */ not null,
    seq    bigint not null,
    turn   text not null,
    type   text not null,
    at     bigint not null,
    data   text not null,
    primary key (thread, seq)
) /*sqlite: without rowid */;
create index events_branched on events (thread, seq) where type = 'branched';
create index events_window on events (thread, seq) where type in ('cleared', 'compacted');
create index events_finished on events (at, thread, seq) where type = 'turn_finished';

-- How long each step of a turn took.
create table thread_steps (
    thread      text /*pg: collate "C" */ not null,
    turn        text not null,
    number      bigint not null,
    description text not null,
    started_at  bigint not null,
    duration_ms bigint not null
);
create index thread_steps_thread on thread_steps (thread, started_at);

-- System texts and tool lists that turns sent to their models, by digest.
create table prompts (
    digest text /*pg: collate "C" */ primary key,
    body   text not null,
    at     bigint not null
);

-- Tool results that are stored whole.
create table artifacts (
    thread     text /*pg: collate "C" */ not null,
    digest     text /*pg: collate "C" */ not null,
    name       text not null,
    size_bytes bigint not null,
    turn       text not null,
    call_id    text not null,
    tainted_by text not null,
    created_at bigint not null,
    primary key (thread, digest)
) /*sqlite: without rowid */;
create index artifacts_made on artifacts (created_at);
create index artifacts_digest on artifacts (digest);
create index artifacts_newest on artifacts (thread, created_at desc, digest);

-- Conversations that people saved.
create table snapshots (
    id          text /*pg: collate "C" */ primary key,
    thread      text /*pg: collate "C" */ not null,
    agent       text /*pg: collate "C" */ not null,
    description text not null,
    messages    bigint not null,
    created_at  bigint not null
) /*sqlite: without rowid */;
create index snapshots_agent on snapshots (agent, id);

-- A workspace before and after a turn or an undo, by the digests of its trees (empty: not stored). An undo names in
-- `undoes` what it takes back, and is still running while `ended_at` is null.
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

-- ---- delivery ----

-- Posts that are to be delivered.
create table outbox (
    /*sqlite: number integer primary key, */
    /*pg: number bigint generated always as identity primary key, */
    id         text /*pg: collate "C" */ not null unique,
    platform   text /*pg: collate "C" */ not null,
    thread     text /*pg: collate "C" */ not null,
    payload    text not null,
    state      text not null default 'pending',
    part       bigint not null default 0,
    attempts   bigint not null default 0,
    maybe_sent bigint not null default 0,
    claims     bigint not null default 0,
    due_at     bigint not null,
    created_at bigint not null,
    error      text not null default ''
);
create index outbox_waiting on outbox (platform, due_at) where state in ('pending', 'sending');
create index outbox_thread on outbox (thread, number) where state in ('pending', 'sending');

-- The platform's ids of delivered messages.
create table posted (
    platform   text /*pg: collate "C" */ not null,
    message_id text /*pg: collate "C" */ not null,
    thread     text /*pg: collate "C" */ not null,
    post       text /*pg: collate "C" */ not null,
    part       bigint not null,
    at         bigint not null,
    primary key (platform, message_id, thread)
) /*sqlite: without rowid */;
create index posted_post on posted (post, part);

-- ---- permissions ----

-- Questions to people whether a call may run. `digest` binds the answer to exactly what will run. `call_digest` leaves
-- out the content that the call depends on (`covers`). With `needs_trust` only a trusted person can allow the call.
create table approvals (
    id            text /*pg: collate "C" */ primary key,
    thread        text /*pg: collate "C" */ not null,
    turn          text not null,
    call_id       text not null,
    tool          text not null,
    actions       text not null,
    digest        text /*pg: collate "C" */ not null,
    call_digest   text not null default '',
    covers        text not null default '',
    shown         text not null,
    shown_in      text /*pg: collate "C" */ not null default '',
    asked_by      text not null,
    reason        text not null default '',
    needs_trust   integer not null default 0,
    state         text not null default 'pending',
    scope         text not null default 'once',
    decided_by    text not null default '',
    decided_trust text not null default '',
    created_at    bigint not null,
    expires_at    bigint not null,
    decided_at    bigint
) /*sqlite: without rowid */;
create index approvals_pending on approvals (expires_at) where state = 'pending';
create index approvals_thread on approvals (thread /*pg: , id */);
create index approvals_call on approvals (thread, call_digest /*pg: , id */) where scope = 'thread';
create index approvals_shown on approvals (shown_in /*pg: , id */) where shown_in <> '';

-- The audit log: chains of entries, each with the hash of the one before. `chains` has the end of each.
create table audit (
    chain    text /*pg: collate "C" */ not null,
    number   bigint not null,
    at       bigint not null,
    entry    text not null,
    previous text not null,
    hash     text not null,
    primary key (chain, number)
) /*sqlite: without rowid */;
create index audit_at on audit (at, chain, number);

create table chains (
    chain  text /*pg: collate "C" */ primary key,
    number bigint not null,
    head   text not null
) /*sqlite: without rowid */;

-- Access tokens, by the SHA-256 of the token. `used_on` is a day (UTC).
create table tokens (
    name       text /*pg: collate "C" */ primary key,
    digest     text /*pg: collate "C" */ not null unique,
    scope      text not null,
    person     text not null,
    agent      text not null default '',
    created_by text not null,
    created_at bigint not null,
    expires_at bigint,
    used_on    text not null default ''
) /*sqlite: without rowid */;

-- ---- agents ----

create table agents (
    name       text /*pg: collate "C" */ primary key,
    state      text not null,
    digest     text not null,
    created_at bigint not null,
    changed_at bigint not null
) /*sqlite: without rowid */;

-- The agent that answers in a channel. `listen` says which messages it answers. `made` is 1 if the channel is its own.
create table bindings (
    platform   text /*pg: collate "C" */ not null,
    channel    text /*pg: collate "C" */ not null,
    agent      text /*pg: collate "C" */ not null,
    listen     text not null default 'threads',
    made       integer not null default 0,
    bound_by   text not null,
    created_at bigint not null,
    primary key (platform, channel)
) /*sqlite: without rowid */;
create index bindings_agent on bindings (agent);

-- Small durable values of all kinds.
create table settings (
    scope text /*pg: collate "C" */ not null,
    key   text /*pg: collate "C" */ not null,
    value text not null,
    primary key (scope, key)
) /*sqlite: without rowid */;

-- Changes of memory files and daily notes: the lines before and after.
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

-- What `recall` finds: pieces of files, and with recall by meaning pieces of messages, whose text is in the journal. A
-- piece with a `person` is for that person alone. Vectors are numbered by arrival, so that a process reads each once.
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

create table recall_vectors (
    /*sqlite: number integer primary key autoincrement, */
    /*pg: number bigint generated always as identity primary key, */
    piece  bigint not null unique,
    vector text not null
);

-- What starts turns by the clock, and each due time that was claimed.
create table triggers (
    id         text /*pg: collate "C" */ primary key,
    spec       text not null,
    state      text not null default 'active',
    next_at    bigint,
    last_at    bigint,
    failures   bigint not null default 0,
    error      text not null default '',
    created_at bigint not null
) /*sqlite: without rowid */;
create index triggers_due on triggers (next_at) where state = 'active';

create table occurrences (
    key        text /*pg: collate "C" */ primary key,
    trigger_id text not null,
    due_at     bigint not null,
    state      text not null,
    at         bigint not null
) /*sqlite: without rowid */;

-- Processes that run alongside turns. `told` is 1 once their end was reported.
create table processes (
    id         text /*pg: collate "C" */ primary key,
    agent      text /*pg: collate "C" */ not null,
    thread     text /*pg: collate "C" */ not null,
    spec       text not null,
    state      text not null default 'running',
    owner      text /*pg: collate "C" */ not null,
    identity   text not null default '',
    started_at bigint not null,
    seen_at    bigint not null,
    ended_at   bigint,
    exit_code  integer,
    reason     text not null default '',
    killed_by  text not null default '',
    told       integer not null default 0
) /*sqlite: without rowid */;
create index processes_started on processes (started_at /*pg: , id */);
create index processes_agent on processes (agent, started_at);
create index processes_running on processes (owner) where state = 'running';
create index processes_at_work on processes (agent, thread) where state = 'running';
create index processes_untold on processes (ended_at) where told = 0;
create index processes_told on processes (ended_at) where told = 1;

-- ---- money ----

-- The use of each model call, and its sums by day. `estimated` counts calls whose provider reported no usable numbers,
-- `priced` those with a known price.
create table spend (
    id                 text /*pg: collate "C" */ primary key,
    thread             text not null,
    turn               text not null,
    day                text /*pg: collate "C" */ not null,
    agent              text /*pg: collate "C" */ not null,
    user_id            text not null,
    model              text /*pg: collate "C" */ not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cached_tokens      bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    estimated          bigint not null default 0,
    usd                double precision,
    at                 bigint not null
) /*sqlite: without rowid */;

create table spend_days (
    day                text /*pg: collate "C" */ not null,
    agent              text /*pg: collate "C" */ not null,
    model              text /*pg: collate "C" */ not null,
    calls              bigint not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cached_tokens      bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    estimated          bigint not null default 0,
    usd                double precision not null,
    priced             bigint not null,
    primary key (day, agent, model)
) /*sqlite: without rowid */;

-- What is used of each budget, and what calls in flight have reserved.
create table budget (
    scope      text not null,
    day        text not null,
    usd        double precision not null,
    tokens     bigint not null,
    usd_max    double precision not null,
    tokens_max bigint not null,
    primary key (scope, day)
) /*sqlite: without rowid */;
create index budget_day on budget (day);

create table reservations (
    id         text primary key,
    keys       text not null,
    usd        double precision not null,
    tokens     bigint not null,
    expires_at bigint not null
) /*sqlite: without rowid */;
create index reservations_lapsing on reservations (expires_at);

-- Recorded model calls that another model was asked to answer. `steps` are the calls; an answer's key is
-- COMPARISON:THREAD:EVENT:RUN. The budget of a comparison is a row of `budget`.
create table comparisons (
    id         text primary key,
    created_at bigint not null,
    wanted     text not null,
    usd_max    double precision not null,
    steps      text not null
);

create table comparison_answers (
    key    text /*pg: collate "C" */ primary key,
    thread text /*pg: collate "C" */ not null,
    answer text not null
);
create index comparison_answers_thread on comparison_answers (thread);
