-- On which platform, and with which roles as JSON, somebody decided an approval.
alter table approvals add column decided_on text not null default '';
alter table approvals add column decided_roles text not null default '';
