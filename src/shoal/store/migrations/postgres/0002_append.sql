-- Stores the events of a thread after number `base`, in the statement that reserved their numbers.
create function shoal_append(of_thread text, base bigint, of_turn text, now bigint, types text[], datas text[])
returns void language plpgsql as $$
begin
    insert into events (thread, seq, turn, type, at, data)
    select of_thread, base + said.number, of_turn, said.type, now, said.data
    from unnest(types, datas) with ordinality as said (type, data, number);
end
$$;

-- The same as before, in a language whose plans the server keeps.
drop function shoal_wake;
create function shoal_wake(of_thread text) returns void language plpgsql as $$
begin
    insert into procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    values ('shoal', 'shoal.advance', of_thread, of_thread, jsonb_build_object('thread', of_thread))
    on conflict (queueing_lock) where status = 'todo' do nothing;
end
$$;
