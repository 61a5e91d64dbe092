-- The card that asks for several calls together, what it says about each (JSON), and what became of an allowed call.
alter table approvals add column card text /*pg: collate "C" */ not null default '';
alter table approvals add column item text not null default '';
alter table approvals add column outcome text not null default '';
create index approvals_card on approvals (card /*pg: , id */) where card <> '';
