-- Columns that tables of the earliest homes lack, and one that was made in another way.
alter table outbox add column claims bigint not null default 0;
alter table approvals add column shown_in text collate "C" not null default '';
alter table events drop column if exists said;
alter table events add column said tsvector generated always as (
    case when type in ('user_message', 'steered', 'assistant_message') then to_tsvector(
        'simple'::regconfig, regexp_replace(
            left(replace(data, '\u0000', '\u0020')::jsonb ->> 'text', 50000),
            '([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])',
            ' \1 ', 'g')
    ) end
) stored;
