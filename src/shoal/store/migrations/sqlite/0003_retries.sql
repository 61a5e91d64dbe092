-- When a turn that waits for its model asks again, and when that was settled: a clock that went back is seen by it.
alter table threads add column retry_at integer;
alter table threads add column retry_set_at integer;
create index threads_retry on threads (retry_at) where retry_at is not null;
