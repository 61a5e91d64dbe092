-- What an agent answers in a channel that is bound to it. Earlier bindings keep what they did.
alter table bindings add column listen text not null default 'threads';
