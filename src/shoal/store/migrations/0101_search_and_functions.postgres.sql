-- Full-text search over the first 50,000 characters of a message. jsonb refuses a NUL, so it counts as a space. Scripts
-- that write no spaces are searched by their characters.
alter table events add column said tsvector generated always as (
    case when type in ('user_message', 'steered', 'assistant_message') then to_tsvector(
        'simple'::regconfig, regexp_replace(
            left(replace(data, '\u0000', '\u0020')::jsonb ->> 'text', 50000),
            '([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])',
            ' \1 ', 'g')
    ) end
) stored;
-- Every search reads the whole pending list of a GIN index, so the list is kept short.
create index events_said on events using gin (said) with (gin_pending_list_limit = 256) where said is not null;
create index events_said_at on events (at, thread, seq) where said is not null;

-- Rows of these tables change in place all the time; free room on their pages keeps that cheap.
alter table threads set (fillfactor = 80);
alter table inbox set (fillfactor = 80);
alter table outbox set (fillfactor = 80);
alter table spend_days set (fillfactor = 80);

-- The functions are in plpgsql because the server keeps the plans of their statements. This one defers the job that
-- advances a thread, unless one waits already, in the transaction that made the work.
create function shoal_wake(of_thread text) returns void language plpgsql as $$
begin
    insert into procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    values ('shoal', 'shoal.advance', of_thread, of_thread, jsonb_build_object('thread', of_thread))
    on conflict (queueing_lock) where status = 'todo' do nothing;
end
$$;

-- Stores the events of a thread after number `base`, in the statement that reserved their numbers.
create function shoal_append(of_thread text, base bigint, of_turn text, now bigint, types text[], datas text[])
returns void language plpgsql as $$
begin
    insert into events (thread, seq, turn, type, at, data)
    select of_thread, base + said.number, of_turn, said.type, now, said.data
    from unnest(types, datas) with ordinality as said (type, data, number);
end
$$;

-- Locks a thread for the holder of its newest lease, and ends the transaction of any other. The statements that follow
-- need not wait for the answer.
create function shoal_hold(of_thread text, of_epoch bigint) returns void language plpgsql as $$
begin
    perform 1 from threads where thread = of_thread and epoch = of_epoch for update;
    if not found then
        raise exception 'Thread %: another worker took it over (epoch % is stale).', of_thread, of_epoch
            using errcode = 'SH001';
    end if;
end
$$;
