-- What people keep of a thread beside what is said in it: who named it (empty: its first words are its title), whether it
-- is pinned or archived, and the model that answers there (empty: its agent's).
alter table threads add column titled text not null default '';
alter table threads add column pinned integer not null default 0;
alter table threads add column archived integer not null default 0;
alter table threads add column model text not null default '';
create index threads_pinned on threads (updated_at, thread) where pinned = 1;
create index threads_archived on threads (updated_at, thread) where archived = 1;
