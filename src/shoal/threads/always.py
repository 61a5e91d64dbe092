""" "Always allow": allow a call and add the rule that its card proposes, or remove that rule. Only the owner can do
this.

The rule is stored before the decision. If the decision fails because the card was already decided or has expired, the
rule is removed again.
"""

from collections.abc import Sequence
from typing import Protocol

from shoal.kernel.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, ShoalError
from shoal.kernel.events import Scope
from shoal.kernel.ids import ApprovalId, CardId
from shoal.kernel.messages import Reaction, means_always
from shoal.kernel.permissions import Asker, StandingRule
from shoal.kernel.records import Approval
from shoal.store.approvals import card_verdicts
from shoal.store.cards import SHORT_ID_CHARS, approval_of, rule_text
from shoal.store.store import Store
from shoal.threads.orchestrator import GONE, Orchestrator

ONLY_THE_OWNER = "Only the owner can add rules."
NO_RULE_HERE = "I cannot create a rule from this call, because the rule would allow more than the card shows."
UNWRITTEN = "This installation cannot change rules."
NOTHING_TO_TAKE_BACK = "This card has no active rule. `shoal permissions rules` lists all rules."


class StandingRules(Protocol):
    """The store of the owner's rules."""

    async def add(self, rule: StandingRule, by: str) -> bool:
        """Add a rule. It takes effect on the next turn.

        Returns False if the rule already exists. Raises InvalidInput if it cannot be added.
        """
        ...

    async def remove(self, rule: StandingRule, by: str) -> bool:
        """Remove a rule. Returns False if it does not exist. Raises InvalidInput if it cannot be removed."""
        ...


class AlwaysAllow:
    """Adds and removes the rules that cards propose. `rules` is None if no rule store is installed."""

    def __init__(self, orchestrator: Orchestrator, store: Store) -> None:
        self._orchestrator = orchestrator
        self._approvals, self._outbox = store.approvals, store.outbox
        self.rules: StandingRules | None = None

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        calls = await self._calls(asked)
        verdicts = card_verdicts(calls, True, numbers)
        allowed = [call for call in calls if verdicts.get(call.id) == "allow"]
        reason = self._why_not(by) or ("" if all(call.item.always.allow for call in allowed) else NO_RULE_HERE)
        if reason and or_thread:
            await self._decide(calls, by, numbers, "thread")
            return f"Allowed in this thread only. {reason}"
        if reason:
            raise (Forbidden if reason == ONLY_THE_OWNER else InvalidInput)(f"{reason} Allow it once instead.")
        added: list[StandingRule] = []
        try:
            for rule in dict.fromkeys(call.item.always for call in allowed):
                if await self._written.add(rule, by.identity):
                    added += [rule]
            await self._decide(calls, by, numbers, "always")
        except ShoalError:
            for rule in added:
                await self._written.remove(rule, by.identity)
            raise
        words = "; ".join(dict.fromkeys(rule_text(call.item.always) for call in allowed))
        named = (calls[0].item.card or calls[0].id)[-SHORT_ID_CHARS:]
        return f"Always allowed: {words}. To remove the rule, write `take back {named}`."

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        if reason := self._why_not(by):
            raise Forbidden(reason)
        decided = await self._approvals.search(pending=False)
        recent = [approval for approval in decided if approval.scope == "always"]
        if thread:
            ruled = [approval for approval in decided if approval.scope in ("always", "withdrawn")]
            names = [approval.item.card or approval.id for approval in ruled if approval.asked_in == thread]
            asked = next((name for name in names if name.upper().endswith(asked.upper())), asked)
        made = [call for call in await self._calls(asked) if call.scope == "always"]
        if not made:
            raise Conflict(NOTHING_TO_TAKE_BACK)
        rules = [call.item.always for call in made]
        for rule in rules:
            await self._written.remove(rule, by.identity)
        made += [approval for approval in recent if any(_is_same(approval.item.always, rule) for rule in rules)]
        await self._approvals.withdraw(list(dict.fromkeys(approval.id for approval in made)))
        for place in {approval.asked_in for approval in made}:
            self._orchestrator.services.senders.poke(place)
        return "Removed the rule. Shoal asks again, starting with the next turn."

    async def react(self, reaction: Reaction) -> str:
        """Process an emoji reaction. The "always" emoji adds the rule that the card proposes."""
        if not means_always(reaction.emoji):
            return await self._orchestrator.react(reaction)
        asked = approval_of(await self._outbox.post_of(reaction.thread, reaction.message_id))
        if not asked:
            return ""
        try:
            await self.always(asked, reaction.author.asker(reaction.thread, reaction.trust))
        except (NotFound, Gone, Forbidden, InvalidInput, Conflict) as error:
            call = await self._approvals.get(asked)
            return "" if call is not None and call.scope == "always" else str(error)
        return ""

    async def _decide(self, calls: Sequence[Approval], by: Asker, numbers: Sequence[int], scope: Scope) -> None:
        if card := calls[0].item.card:
            await self._orchestrator.decide_card(card, True, by, numbers, scope)
        else:
            await self._orchestrator.decide(calls[0].id, True, by, scope)

    async def _calls(self, asked: str) -> list[Approval]:
        if calls := await self._approvals.on_card(CardId(asked)):
            return calls
        call = await self._approvals.get(ApprovalId(asked))
        if call is None:
            raise NotFound(GONE)
        return [call]

    def _why_not(self, by: Asker) -> str:
        if self._orchestrator.services.links.people.asker(by).trust != "owner":
            return ONLY_THE_OWNER
        return "" if self.rules is not None else UNWRITTEN

    @property
    def _written(self) -> StandingRules:
        assert self.rules is not None
        return self.rules


def _is_same(rule: StandingRule, other: StandingRule) -> bool:
    return (rule.allow, rule.agent, rule.users, rule.channel) == (other.allow, other.agent, other.users, other.channel)
