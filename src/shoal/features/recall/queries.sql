-- name: recall_sources
-- What is known of the sources between two names.
select source, stamp, problem from recall_sources where source >= :low and source < :high order by source limit :limit;

-- name: recall_source
-- What is known of a source.
select stamp from recall_sources where source = :source;

-- name: recall_source_put
-- Note what is known of a source.
insert into recall_sources (source, stamp, problem) values (:source, :stamp, :problem)
on conflict (source) do update set stamp = excluded.stamp, problem = excluded.problem;

-- name: recall_source_drop
-- Forget a source.
delete from recall_sources where source = :source;

-- name: recall_pieces_of
-- The pieces of a source, in the order in which they came.
select id, place, text, person from recall_pieces where source = :source order by id limit :limit;

-- name: recall_piece
-- One piece, with its vector.
select p.id, p.source, p.place, p.text, p.person, v.vector
from recall_pieces p join recall_vectors v on v.piece = p.id where p.id = :id;

-- name: recall_insert
-- Add a piece.
insert into recall_pieces (source, place, text, person) values (:source, :place, :text, :person);

-- name: recall_move
-- A piece stands elsewhere now.
update recall_pieces set place = :place where id = :id;

-- name: recall_delete
-- Delete a piece.
delete from recall_pieces where id = :id;

-- name: recall_vector_delete
-- Delete the vector of a piece.
delete from recall_vectors where piece = :id;

-- name: recall_waiting
-- Pieces that have no vector yet, the newest first.
select id, source, place, text, person from recall_pieces where embedded = 0 order by id desc limit :limit;

-- name: recall_embedded
-- Note that a piece has its vector; nothing when it is gone.
update recall_pieces set embedded = 1 where id = :id and embedded = 0 returning id;

-- name: recall_vector_insert
-- Keep the vector of a piece.
insert into recall_vectors (piece, vector) values (:id, :vector);

-- name: recall_vectors
-- The vectors after a number, with what their pieces are of.
select v.number, v.piece, p.source, p.person, v.vector
from recall_vectors v join recall_pieces p on p.id = v.piece where v.number > :after order by v.number limit :limit;

-- name: recall_reset
-- Have the next pieces embedded anew: the model is another one.
update recall_pieces set embedded = 0 where id in (
    select id from recall_pieces where id > :after order by id limit :limit) returning id;
