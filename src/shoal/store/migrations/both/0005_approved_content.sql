-- Approvals cover the content that a call depends on, and say how far who decided is trusted.
alter table approvals add column call_digest text not null default '';
alter table approvals add column covers text not null default '';
alter table approvals add column decided_trust text not null default '';
drop index approvals_thread;
create index approvals_thread on approvals (thread, call_digest);
