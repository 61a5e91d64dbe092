-- name: recall_sources
-- Return the indexed sources between two names.
select source, stamp, problem from recall_sources where source >= :low and source < :high order by source limit :limit;

-- name: recall_source
-- Return an indexed source.
select stamp from recall_sources where source = :source;

-- name: recall_source_put
-- Store a source's stamp and error.
insert into recall_sources (source, stamp, problem) values (:source, :stamp, :problem)
on conflict (source) do update set stamp = excluded.stamp, problem = excluded.problem;

-- name: recall_source_drop
-- Delete a source.
delete from recall_sources where source = :source;

-- name: recall_pieces_of
-- Return a source's passages in the order of insertion.
select id, place, text, person from recall_pieces where source = :source order by id limit :limit;

-- name: recall_piece
-- Return a passage with its vector.
select p.id, p.source, p.place, p.text, p.person, v.vector
from recall_pieces p join recall_vectors v on v.piece = p.id where p.id = :id;

-- name: recall_insert
-- Insert a passage.
insert into recall_pieces (source, place, text, person) values (:source, :place, :text, :person);

-- name: recall_move
-- Change the position of a passage in its source.
update recall_pieces set place = :place where id = :id;

-- name: recall_delete
-- Delete a passage.
delete from recall_pieces where id = :id;

-- name: recall_vector_delete
-- Delete a passage's vector.
delete from recall_vectors where piece = :id;

-- name: recall_waiting
-- Return passages without a vector, newest first.
select id, source, place, text, person from recall_pieces where embedded = 0 order by id desc limit :limit;

-- name: recall_embedded
-- Record that a passage has a vector. Does nothing if the passage no longer exists.
update recall_pieces set embedded = 1 where id = :id and embedded = 0 returning id;

-- name: recall_vector_insert
-- Store a passage's vector.
insert into recall_vectors (piece, vector) values (:id, :vector);

-- name: recall_vectors
-- Return the vectors after a number, with the sources of their passages.
select v.number, v.piece, p.source, p.person, v.vector
from recall_vectors v join recall_pieces p on p.id = v.piece where v.number > :after order by v.number limit :limit;

-- name: recall_reset
-- Mark the next passages as not embedded, because the model has changed.
update recall_pieces set embedded = 0 where id in (
    select id from recall_pieces where id > :after order by id limit :limit) returning id;
