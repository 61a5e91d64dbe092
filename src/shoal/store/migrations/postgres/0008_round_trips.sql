-- Locks a thread for the holder of its newest lease, and ends the transaction when that is another: what follows need not
-- wait for the answer.
create function shoal_hold(of_thread text, of_epoch bigint) returns void language plpgsql as $$
begin
    perform 1 from threads where thread = of_thread and epoch = of_epoch for update;
    if not found then
        raise exception 'Thread %: another worker took it over (epoch % is stale).', of_thread, of_epoch
            using errcode = 'SH001';
    end if;
end
$$;
