-- name: search_insert
-- Make what was said findable (PostgreSQL does so by itself). `spread` is ours, see store/search.py.
/*sqlite: insert into search (words, thread, seq) values (spread(:said), :thread, :seq) */;

-- name: search_said
-- What was said with all of these words, the newest first.
select e.thread, e.seq, e.turn, e.type, e.at, e.data from
/*sqlite: search join events e on e.thread = search.thread and e.seq = search.seq where search match :quoted and */
/*pg: events e where e.said is not null and e.said @@ to_tsquery('simple', :words) and */
e.thread >= :low and e.thread < :high and e.at < :before
order by e.at desc, e.thread, e.seq desc limit :limit;
