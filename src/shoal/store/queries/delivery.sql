-- name: outbox_insert
-- Enqueue a post once.
insert into outbox (id, platform, thread, payload, due_at, created_at)
values (:id, :platform, :thread, :payload, :now, :now)
on conflict (id) do nothing
/*pg: returning number */ /*sqlite: ; select last_insert_rowid() where changes() > 0 */;

-- name: outbox_insert_claimed
-- Enqueue and claim a post once, unless another post of its thread must go first.
insert into outbox (id, platform, thread, payload, state, due_at, created_at)
select :id, :platform, :thread, :payload, 'sending', :claimed_until, :now
where not exists (select 1 from outbox where thread = :thread and state in ('pending', 'sending'))
on conflict (id) do nothing
/*pg: returning number */ /*sqlite: ; select last_insert_rowid() where changes() > 0 */;

-- name: due
-- Notify other processes of a due post or trigger. Does nothing with a single process.
/*pg: select from pg_notify('shoal_due', :what) */;

-- name: outbox_claim
-- Claim due posts, oldest first and only the oldest unsent one per thread. Expired claims are returned as maybe sent. A
-- time after `latest` can only come from a clock that was set back since, so those posts are due too.
with due as materialized (
    select o.number from outbox o
    where o.platform = :platform and o.state in ('pending', 'sending') and (o.due_at <= :now or o.due_at > :latest)
        and not exists (select 1 from outbox e
            where e.thread = o.thread and e.number < o.number and e.state in ('pending', 'sending'))
    order by o.number limit :limit /*pg: for update of o skip locked */)
update outbox set
    maybe_sent = case when state = 'sending' then 1 else maybe_sent end,
    state = 'sending', due_at = :claimed_until, claims = claims + 1
where number in (select number from due)
returning number, id, thread, payload, part, attempts, created_at, maybe_sent, claims;

-- name: outbox_extend
-- Extend the claim of a post.
update outbox set due_at = :claimed_until where id = :id and state = 'sending';

-- name: outbox_release
-- Make the claims of a platform's former sender due immediately.
update outbox set due_at = :now where platform = :platform and state in ('pending', 'sending') and state = 'sending';

-- name: outbox_give_back
-- Return a claimed post that was not started, unless another sender has since claimed or sent it.
update outbox set state = 'pending', due_at = :now where id = :id and state = 'sending' and claims = :claims;

-- name: outbox_part
-- Record a posted piece, no matter who holds the claim.
update outbox set part = :part, attempts = 0, maybe_sent = 0 where id = :id and part < :part and state <> 'sent';

-- name: outbox_sent
-- Record that all of a post was sent. Its text is in the journal, so it is removed here.
update outbox set state = 'sent', part = :part, error = '', maybe_sent = 0, payload = '' where id = :id;

-- name: posted_insert
-- Record the platform's message id of a piece.
insert into posted (platform, message_id, thread, post, part, at)
values (:platform, :message_id, :thread, :post, :part, :now)
on conflict (platform, message_id, thread) do update set post = excluded.post, part = excluded.part;

-- name: posted_of
-- The platform's message ids of a post, each with the piece that it shows.
select message_id, part from posted where post = :post order by part;

-- name: posted_at
-- When the first message of a post was recorded.
select at from posted where post = :post and message_id <> '' order by part limit 1;

-- name: preview_begin
-- Record that a turn's preview is about to be shown, unless a post of its thread must go first or the answer was
-- posted.
insert into posted (platform, message_id, thread, post, part, at)
select :platform, '', :thread, :post, :part, :now
where not exists (select 1 from outbox where thread = :thread and state in ('pending', 'sending'))
    and not exists (select 1 from outbox where id = :reply)
on conflict (platform, message_id, thread) do update set
    post = excluded.post, part = case when posted.post = excluded.post then posted.part else excluded.part end
returning part;

-- name: preview_noted
-- Record the platform's message id of a preview, unless the turn's answer was posted without it.
insert into posted (platform, message_id, thread, post, part, at)
select :platform, :message_id, :thread, :post, 0, :now from posted
where platform = :platform and message_id = '' and thread = :thread and post = :post /*pg: for share */
on conflict (platform, message_id, thread) do update set post = excluded.post, part = excluded.part
returning part;

-- name: preview_overtake
-- Record that a post follows the thread's preview, unless it is the answer that replaces it.
update posted set part = :part where platform = :platform and message_id = '' and thread = :thread and post <> :own;

-- name: preview_part
-- The recorded parts of a turn's preview.
select part from posted where platform = :platform and message_id = '' and thread = :thread and post = :post;

-- name: posted_nowhere
-- Delete the record of a started preview.
delete from posted where platform = :platform and message_id = '' and thread = :thread and post = :post;

-- name: posted_any
-- Whether a platform's message belongs to a post.
select 1 from posted where platform = :platform and message_id = :message_id limit 1;

-- name: outbox_retry
-- Postpone a post, unless another sender has since claimed or sent it.
update outbox set state = 'pending', attempts = attempts + 1, due_at = :due_at, error = :error, maybe_sent = :maybe_sent
where id = :id and state = 'sending' and claims = :claims;

-- name: outbox_fail
-- Mark a post as failed, unless another sender has since claimed or sent it.
update outbox set state = 'failed', error = :error where id = :id and state = 'sending' and claims = :claims
returning id;

-- name: outbox_again
-- Retry a failed post.
update outbox set state = 'pending', payload = :payload, part = 0, attempts = 0, maybe_sent = 0, error = '',
    due_at = :now, created_at = :now
where id = :id and state = 'failed'
returning number;

-- name: outbox_withdraw
-- Mark an unclaimed post as failed.
update outbox set state = 'failed' where id = :id and state = 'pending' returning error;

-- name: outbox_fate
-- The state of a post.
select state, error from outbox where id = :id;

-- name: outbox_more
-- Whether a thread has pending posts.
select 1 from outbox where thread = :thread and state in ('pending', 'sending') limit 1;

-- name: outbox_depth
-- The number of unsent posts.
select count(*), min(created_at) from outbox where state in ('pending', 'sending');

-- name: approval_insert
-- Store an approval request.
insert into approvals (id, thread, turn, call_id, tool, actions, digest, shown, asked_by, reason, shown_in,
    call_digest, covers, needs_trust, card, item, created_at, expires_at)
values (:id, :thread, :turn, :call_id, :tool, :actions, :digest, :shown, :asked_by, :reason, :shown_in,
    :call_digest, :covers, :needs_trust, :card, :item, :now, :expires_at);

-- name: approval_settle
-- Decide a pending approval. Does nothing if it is not pending any more.
update approvals set state = :state, scope = :scope, decided_by = :decided_by, decided_trust = :decided_trust,
    decided_on = :decided_on, decided_roles = :decided_roles, decided_at = :now
where id = :id and state = 'pending' and (:state <> 'allow' and :state <> 'deny' or expires_at > :now)
returning thread;

-- name: approval_use
-- Use an approval. Does nothing if it was not allowed or is already used.
update approvals set state = 'used' where id = :id and state = 'allow' returning id;

-- name: approval_outcome
-- Store the outcome of an allowed call.
update approvals set outcome = :outcome where id = :id;

-- name: approval_withdraw
-- Record that the rule of an approval was removed. Does nothing if it created no rule or the rule was already removed.
update approvals set scope = 'withdrawn' where id = :id and scope = 'always' returning id;

-- name: approvals_cancel
-- Cancel the pending approvals of an ended turn.
update approvals set state = 'cancelled', decided_at = :now
where thread = :thread and turn = :turn and state = 'pending'
/*pg: returning id */
/*sqlite: ; select id from approvals */
/*sqlite: where thread = :thread and turn = :turn and state = 'cancelled' and decided_at = :now and changes() > 0 */;

-- name: approval_one
-- One approval.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals where id = :id;

-- name: approvals_card
-- The calls of a card.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals where card = :card and card <> '';

-- name: staged_set_insert
-- Store a turn's staged calls until their card is decided.
insert into staged_sets (card, thread, prompt, created_at) values (:card, :thread, :prompt, :now);

-- name: staged_set_take
-- Take the staged calls of a decided card, once.
delete from staged_sets where card = :card returning prompt;

-- name: approvals_recent
-- Approvals, newest first. Their ids sort by time.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals order by id desc limit :limit;

-- name: approvals_of
-- Approvals of a thread and those shown there, newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where id in (select id from (select id from approvals where thread = :thread order by id desc limit :limit) own
    union select id from (select id from approvals where shown_in = :thread and shown_in <> ''
        order by id desc limit :limit) shown)
order by id desc limit :limit;

-- name: approvals_waiting
-- Pending approvals of a thread and those shown there, or all, newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where id in (select id from approvals where state = 'pending') and (:thread = '' or thread = :thread or shown_in = :thread)
order by id desc limit :limit;

-- name: approval_grants
-- Approvals that allow this call in the whole thread, newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where thread = :thread and call_digest = :call_digest and scope = 'thread' and state in ('allow', 'used')
order by id desc limit :limit;

-- name: approvals_expired
-- Overdue pending approvals.
select id, card from approvals where state = 'pending' and expires_at <= :now order by expires_at limit 100;
