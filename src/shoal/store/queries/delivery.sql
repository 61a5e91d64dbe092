-- name: outbox_insert
-- Enqueue a post once.
insert into outbox (id, platform, thread, payload, due_at, created_at)
values (:id, :platform, :thread, :payload, :now, :now)
on conflict (id) do nothing
/*pg: returning number */ /*sqlite: ; select last_insert_rowid() where changes() > 0 */;

-- name: outbox_insert_claimed
-- Enqueue a post once, claimed already, unless another of its thread has to go first.
insert into outbox (id, platform, thread, payload, state, due_at, created_at)
select :id, :platform, :thread, :payload, 'sending', :claimed_until, :now
where not exists (select 1 from outbox where thread = :thread and state in ('pending', 'sending'))
on conflict (id) do nothing
/*pg: returning number */ /*sqlite: ; select last_insert_rowid() where changes() > 0 */;

-- name: due
-- Tell other processes that something became due: a platform's post, or a trigger (nothing to do in one process).
/*pg: select from pg_notify('shoal_due', :what) */;

-- name: outbox_claim
-- Take due posts, oldest first and only the oldest unsent of a thread; late claims come back as maybe sent. What is due
-- after `latest`, which nothing waits for, was put off by a clock that has been set back since.
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
-- A claimed post takes longer.
update outbox set due_at = :claimed_until where id = :id and state = 'sending';

-- name: outbox_release
-- Whoever delivered for a platform is gone: what it held is due at once.
update outbox set due_at = :now where platform = :platform and state in ('pending', 'sending') and state = 'sending';

-- name: outbox_give_back
-- A claimed post was not begun, unless another sender has claimed or sent it meanwhile.
update outbox set state = 'pending', due_at = :now where id = :id and state = 'sending' and claims = :claims;

-- name: outbox_part
-- A piece was posted, which is so whoever holds the claim by now.
update outbox set part = :part, attempts = 0, maybe_sent = 0 where id = :id and part < :part and state <> 'sent';

-- name: outbox_sent
-- All of it was posted; what it said stands in the journal, and is not kept twice.
update outbox set state = 'sent', part = :part, error = '', maybe_sent = 0, payload = '' where id = :id;

-- name: posted_insert
-- Remember the platform's message id of a piece.
insert into posted (platform, message_id, thread, post, part, at)
values (:platform, :message_id, :thread, :post, :part, :now)
on conflict (platform, message_id, thread) do update set post = excluded.post, part = excluded.part;

-- name: posted_of
-- The platform's message ids of a post, and which piece of it each shows.
select message_id, part from posted where post = :post order by part;

-- name: posted_at
-- When a post's first message was noted.
select at from posted where post = :post and message_id <> '' order by part limit 1;

-- name: preview_begin
-- Note that a turn's preview is about to be shown, unless a post of its thread is to be made first, or its answer was.
insert into posted (platform, message_id, thread, post, part, at)
select :platform, '', :thread, :post, :part, :now
where not exists (select 1 from outbox where thread = :thread and state in ('pending', 'sending'))
    and not exists (select 1 from outbox where id = :reply)
on conflict (platform, message_id, thread) do update set
    post = excluded.post, part = case when posted.post = excluded.post then posted.part else excluded.part end
returning part;

-- name: preview_noted
-- Remember the platform's message id of a preview, unless its turn's answer has gone on without it.
insert into posted (platform, message_id, thread, post, part, at)
select :platform, :message_id, :thread, :post, 0, :now from posted
where platform = :platform and message_id = '' and thread = :thread and post = :post /*pg: for share */
on conflict (platform, message_id, thread) do update set post = excluded.post, part = excluded.part
returning part;

-- name: preview_overtake
-- A post follows the preview that a thread may have, unless it is the answer that takes it.
update posted set part = :part where platform = :platform and message_id = '' and thread = :thread and post <> :own;

-- name: preview_part
-- What is noted of a turn's preview.
select part from posted where platform = :platform and message_id = '' and thread = :thread and post = :post;

-- name: posted_nowhere
-- Forget that a turn's preview is about to be shown.
delete from posted where platform = :platform and message_id = '' and thread = :thread and post = :post;

-- name: posted_any
-- Whether a message of a platform is a post's.
select 1 from posted where platform = :platform and message_id = :message_id limit 1;

-- name: outbox_retry
-- Put a post back until its time, unless another sender has claimed or sent it meanwhile.
update outbox set state = 'pending', attempts = attempts + 1, due_at = :due_at, error = :error, maybe_sent = :maybe_sent
where id = :id and state = 'sending' and claims = :claims;

-- name: outbox_fail
-- Give a post up, unless another sender has claimed or sent it meanwhile.
update outbox set state = 'failed', error = :error where id = :id and state = 'sending' and claims = :claims
returning id;

-- name: outbox_again
-- Try a post anew that was given up.
update outbox set state = 'pending', payload = :payload, part = 0, attempts = 0, maybe_sent = 0, error = '',
    due_at = :now, created_at = :now
where id = :id and state = 'failed'
returning number;

-- name: outbox_withdraw
-- Give up a post that nobody holds.
update outbox set state = 'failed' where id = :id and state = 'pending' returning error;

-- name: outbox_fate
-- What has become of a post.
select state, error from outbox where id = :id;

-- name: outbox_more
-- Whether a thread has posts that are to be made.
select 1 from outbox where thread = :thread and state in ('pending', 'sending') limit 1;

-- name: outbox_depth
-- How many posts are on their way.
select count(*), min(created_at) from outbox where state in ('pending', 'sending');

-- name: approval_insert
-- Ask a person.
insert into approvals (id, thread, turn, call_id, tool, actions, digest, shown, asked_by, reason, shown_in,
    call_digest, covers, needs_trust, card, item, created_at, expires_at)
values (:id, :thread, :turn, :call_id, :tool, :actions, :digest, :shown, :asked_by, :reason, :shown_in,
    :call_digest, :covers, :needs_trust, :card, :item, :now, :expires_at);

-- name: approval_settle
-- Decide a pending approval; nothing when it is not pending any more.
update approvals set state = :state, scope = :scope, decided_by = :decided_by, decided_trust = :decided_trust,
    decided_on = :decided_on, decided_roles = :decided_roles, decided_at = :now
where id = :id and state = 'pending' and (:state <> 'allow' and :state <> 'deny' or expires_at > :now)
returning thread;

-- name: approval_use
-- Spend an approval; nothing when it was not allowed or is spent.
update approvals set state = 'used' where id = :id and state = 'allow' returning id;

-- name: approval_outcome
-- Note what became of an allowed call.
update approvals set outcome = :outcome where id = :id;

-- name: approval_withdraw
-- Note that the rule of an approval was taken back; nothing when it made none, or it was taken back before.
update approvals set scope = 'withdrawn' where id = :id and scope = 'always' returning id;

-- name: approvals_cancel
-- The turn ended: its open questions are void.
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
-- Keep the calls that a turn has staged until its card is decided.
insert into staged_sets (card, thread, prompt, created_at) values (:card, :thread, :prompt, :now);

-- name: staged_set_take
-- The calls of a card that is decided, once.
delete from staged_sets where card = :card returning prompt;

-- name: approvals_recent
-- Approvals, newest first: their ids sort by time.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals order by id desc limit :limit;

-- name: approvals_of
-- Approvals of a thread, and those shown there, newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where id in (select id from (select id from approvals where thread = :thread order by id desc limit :limit) own
    union select id from (select id from approvals where shown_in = :thread and shown_in <> ''
        order by id desc limit :limit) shown)
order by id desc limit :limit;

-- name: approvals_waiting
-- Pending approvals, of a thread and shown there, or all; newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where id in (select id from approvals where state = 'pending') and (:thread = '' or thread = :thread or shown_in = :thread)
order by id desc limit :limit;

-- name: approval_grants
-- What allowed this call for the whole thread, newest first.
select id, thread, turn, call_id, tool, actions, digest, shown, asked_by, state, created_at, expires_at, scope,
    decided_by, decided_at, reason, shown_in, call_digest, covers, decided_trust, needs_trust, decided_on, decided_roles, item,
    outcome
from approvals
where thread = :thread and call_digest = :call_digest and scope = 'thread' and state in ('allow', 'used')
order by id desc limit :limit;

-- name: approvals_expired
-- Pending approvals whose time is up.
select id, card from approvals where state = 'pending' and expires_at <= :now order by expires_at limit 100;
