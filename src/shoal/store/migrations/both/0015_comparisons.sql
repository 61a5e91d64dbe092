-- Recorded model calls asked of another model: what was asked for, with the calls that were chosen, and each answer by
-- COMPARISON:THREAD:EVENT:RUN. A comparison's ceiling is a row of `budget`.
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
