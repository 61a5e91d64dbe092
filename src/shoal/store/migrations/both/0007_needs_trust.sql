-- A question that untrusted content raised can only be allowed by somebody who is trusted.
alter table approvals add column needs_trust integer not null default 0;
