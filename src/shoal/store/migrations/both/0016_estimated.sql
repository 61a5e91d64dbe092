-- How many of the calls have estimated tokens, because the provider reported no usable numbers.
alter table spend add column estimated bigint not null default 0;
alter table spend_days add column estimated bigint not null default 0;
