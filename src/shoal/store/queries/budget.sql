-- name: budget_add
-- Add to the spent amount of a limit. Creates its row and locks it for the transaction.
insert into budget (scope, day, usd, tokens, usd_max, tokens_max)
values (:scope, :day, :usd, :tokens, coalesce(cast(:usd_max as double precision), 0), coalesce(cast(:tokens_max as bigint), 0))
on conflict (scope, day) do update set
    usd = case when budget.usd + :usd > 0.0000000001 then budget.usd + :usd else 0 end,
    tokens = case when budget.tokens + :tokens > 0 then budget.tokens + :tokens else 0 end,
    usd_max = coalesce(cast(:usd_max as double precision), budget.usd_max),
    tokens_max = coalesce(cast(:tokens_max as bigint), budget.tokens_max)
returning scope, day, usd, tokens, usd_max, tokens_max;

-- name: budget_all
-- The spent amounts of a day's limits, and of limits without a day.
select scope, day, usd, tokens, usd_max, tokens_max from budget
where day = :day or (day = '' and scope = 'total') order by scope, day;

-- name: reservation_insert
-- Reserve a model call's cost.
insert into reservations (id, keys, usd, tokens, expires_at) values (:id, :keys, :usd, :tokens, :expires_at);

-- name: reservation_take
-- End a reservation.
delete from reservations where id = :id returning keys, usd, tokens;

-- name: reservations_lapsed
-- End expired reservations, including those made before the clock was set back.
delete from reservations where id in (
    select id from reservations where expires_at <= :now or expires_at > :latest order by expires_at limit :limit /*pg: for update skip locked */)
returning keys, usd, tokens;
