-- name: search_insert
-- Add a message to the search index (PostgreSQL does this automatically). `spread` and `places` are functions of
-- store/search.py.
/*sqlite: insert into search_events (thread, seq) values (:thread, :seq); */
/*sqlite: insert into search_words (rowid, words, places) */
/*sqlite: values (last_insert_rowid(), spread(:said), places(:thread)) */;

-- name: search_said
-- Messages with all of these words, newest first. SQLite sorts by the time they were stored, the order of its index.
select e.thread, e.seq, e.turn, e.type, e.at, e.data from
/*sqlite: search_words cross join search_events said on said.id = search_words.rowid */
/*sqlite: cross join events e on e.thread = said.thread and e.seq = said.seq */
/*sqlite: where search_words match :quoted and said.thread >= :low and said.thread < :high */
/*sqlite: order by search_words.rowid desc limit :limit */
/*pg: events e where e.said is not null and e.said @@ to_tsquery('simple', :words) */
/*pg: and e.thread >= :low and e.thread < :high order by e.at desc, e.thread desc, e.seq desc limit :limit */;
