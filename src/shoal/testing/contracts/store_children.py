"""Contract tests for child threads. A tool call in a turn starts a child thread."""

import msgspec

from shoal.kernel.agents import child_thread, report_of
from shoal.kernel.events import TurnFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Abort, Caller, Prompt, Receipt
from shoal.kernel.records import Commit
from shoal.store.store import Store
from shoal.testing.contracts.steps import PERSON, SENT_AT, THREAD, closed, leased, opened, opening


def called(call: str = "c1", turn: str = "T1", mode: str = "wait") -> Prompt:
    """Return the prompt that a tool call in THREAD sends to its child."""
    caller = msgspec.convert(
        {
            "line": [[THREAD, turn]],
            "call_id": call,
            "mode": mode,
            "author": msgspec.to_builtins(PERSON),
            "tainted_by": "",
        },
        Caller,
    )
    thread = child_thread(THREAD, TurnId(turn), CallId(call))
    return Prompt(thread, thread, "count", PERSON, SENT_AT, origin="agent", caller=caller)


async def begun(store: Store, prompt: Prompt) -> Receipt:
    """Start a child thread. At most two may run at the same time."""
    return await store.children.begin(prompt, 2)


async def ended(store: Store, prompt: Prompt, turn: str = "C1") -> ThreadId:
    """Run the turn of a child thread to its end, and report the result to the parent."""
    lease = await leased(store, prompt.thread)
    await store.journal.open_turn(lease, prompt, opening(turn, prompt))
    finished = TurnFinished("done", "seven")
    assert prompt.caller is not None
    report = report_of(prompt.thread, "main", prompt.caller, finished)
    await store.journal.finish_turn(lease, Commit(TurnId(turn), (finished,), report=report))
    return prompt.thread


class ChildRules:
    """Tests of `ChildStore`, mixed into `StoreContract`."""

    async def test_a_call_begins_one_child_even_if_it_runs_again(self, store: Store) -> None:
        """A tool call may run again after a crash."""
        await opened(store)
        assert (await begun(store, called())).status == "accepted"
        assert (await begun(store, called())).status == "duplicate"
        assert await store.children.working(THREAD) == [called().thread]
        info = await store.journal.thread(called().thread)
        assert info is not None
        assert (info.parent, info.queued) == (THREAD, 1)

    async def test_the_limit_counts_only_running_children(self, store: Store) -> None:
        await opened(store)
        first, second, third = called("c1"), called("c2"), called("c3")
        await begun(store, first)
        await begun(store, second)
        assert (await begun(store, third)).status == "busy"
        assert await store.children.get(third.thread) is None
        await ended(store, first)
        assert (await begun(store, third)).status == "accepted"

    async def test_a_finished_or_stopping_turn_begins_no_child(self, store: Store) -> None:
        lease = await opened(store)
        assert (await begun(store, called(turn="T0"))).status == "dropped"
        await store.inbox.abort(Abort(THREAD, PERSON))
        assert (await begun(store, called())).status == "dropped"
        await closed(store, lease, outcome="aborted")
        assert (await begun(store, called())).status == "dropped"
        assert await store.children.get(called().thread) is None

    async def test_a_childs_state_and_result_can_be_read(self, store: Store) -> None:
        await opened(store)
        await begun(store, called())
        child = await store.children.get(called().thread)
        assert child is not None
        assert (child.works, child.finished) == (True, None)
        await ended(store, called())
        child = await store.children.get(called().thread)
        assert child is not None
        assert child.finished is not None
        assert (child.works, child.finished.reply) == (False, "seven")

    async def test_a_spawned_childs_result_is_journaled_in_the_same_transaction(self, store: Store) -> None:
        """The journal entry does not belong to any turn of the parent."""
        await opened(store)
        prompt = called(mode="tell")
        await begun(store, prompt)
        thread = await ended(store, prompt)
        note = (await store.journal.events(THREAD))[-1]
        assert note.turn == ""
        assert isinstance(note.data, UserSaid)
        assert note.data.text == f"[The subagent {thread} has finished.]\nseven"

    async def test_a_waking_childs_result_is_a_prompt_for_its_parent(self, store: Store) -> None:
        """The mailbox accepts the prompt even if it is full."""
        lease = await opened(store)
        prompt = called(mode="wake")
        await begun(store, prompt)
        thread = await ended(store, prompt)
        following = (await closed(store, lease)).prompt
        assert following is not None
        assert (following.key, following.origin, following.author.id) == (f"child:{thread}", "agent", PERSON.id)
