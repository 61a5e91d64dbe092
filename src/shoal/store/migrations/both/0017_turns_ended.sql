-- The turns that ended in a period, counted and listed without reading anything else.
create index events_finished on events (at, thread, seq) where type = 'turn_finished';
