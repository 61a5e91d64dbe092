"""The access gate: it admits people by allow-list or code, accepts decisions in plain text, and limits the rate."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.kernel.agents import Listen
from shoal.kernel.commands import CommandRequest, CommandTable
from shoal.kernel.errors import Conflict, Forbidden, NotFound, StoreError
from shoal.kernel.events import Scope
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, make_thread_id
from shoal.kernel.messages import UNTOLD, Author, Deletion, Inbound, Prompt, Reaction, Receipt
from shoal.kernel.permissions import Asker
from shoal.kernel.posts import CHOOSING
from shoal.kernel.records import NewPost
from shoal.permissions.access import AccessRules, Links, People, Person, admit, code_digest, is_code, make_code
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD
from shoal.testing.contracts.store_approvals import asked
from shoal.testing.database import empty_database
from shoal.threads.access_gate import MESSAGES_BURST, AccessGate
from shoal.threads.admissions import Admissions
from shoal.threads.pairing import SCOPE, Pairing
from shoal.threads.scope import Scopes
from shoal.threads.timezones import TimeZones
from shoal.threads.whereabouts import OWNER_IN

PLATFORM = THREAD.split(":", maxsplit=1)[0]


class Inside:
    """The code behind the gate, with a record of the messages that reach it."""

    pause_seconds = 0.0

    def __init__(self) -> None:
        self.taken: list[Inbound] = []
        self.decided: list[tuple[str, bool, str]] = []
        self.said: list[str] = []
        self.reactions: list[Reaction] = []
        self.requests: list[CommandRequest] = []
        self.commands = CommandTable()
        self.decided_cards: list[tuple[CardId, bool, tuple[int, ...]]] = []
        self.settled = False
        self.broken = False

    async def send(self, message: Inbound) -> Receipt:
        self.taken.append(message)
        return Receipt("accepted")

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        if self.settled:
            raise Conflict("It was decided already.")
        self.decided.append((approval, allow, by.user))
        return "allow"

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        self.decided_cards.append((card, allow, tuple(numbers)))
        return "Allowed."

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        return CHOOSING

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        self.decided.append((ApprovalId(asked), True, by.user))
        return f"Always allowed for {by.trust}."

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        return f"Taken back by {by.trust}."

    async def undo_files(self, card: CardId, by: Asker) -> str:
        return f"Restored by {by.trust}."

    async def admits(self, message: Prompt) -> bool:
        return True

    async def listens(self, thread: ThreadId) -> Listen:
        return "all"

    async def react(self, reaction: Reaction) -> str:
        self.reactions.append(reaction)
        return ""

    async def command(self, asked: CommandRequest) -> str:
        if self.broken:
            raise StoreError("The disk is gone.")
        self.requests.append(asked)
        return f"Did /{asked.name}."

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        return ("one/tall",)

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        return None

    async def post(self, post: NewPost) -> None:
        self.said.append(post.text)


class Place:
    def __init__(self, store: Store, clock: ManualClock, home: Home) -> None:
        self.agents = AgentRegistry(home, AgentDefaults())
        self.store = store
        self.clock = clock
        self.inside = Inside()
        self.pairing = Pairing(store, clock)

    def admissions(self, rules: AccessRules, links: Links | None = None) -> Admissions:
        links = links or Links()
        return Admissions(
            msgspec.structs.replace(links, rules={**links.rules, PLATFORM: rules}), self.pairing, {PLATFORM}
        )

    def gate(self, rules: AccessRules, links: Links | None = None) -> AccessGate:
        admissions = self.admissions(rules, links)
        timezones = TimeZones(self.store.settings, admissions.links.people, self.clock)
        scopes = Scopes(admissions.links, self.agents, self.store.settings, timezones)
        return AccessGate(self.inside, admissions, self.pairing, self.store, self.clock, self.inside.post, scopes)

    def says(self, user: str, text: str = "hi", *, direct: bool = False, is_bot: bool = False) -> Prompt:
        author = Author(user, user, is_bot=is_bot, trusted=True)
        thread = make_thread_id(PLATFORM, "lobby", "1") if text == "hi" else THREAD
        return Prompt(thread, self.clock.new_id(), text, author, self.clock.now(), direct=direct)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    clock = ManualClock()
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), clock)
    yield Place(store, clock, Home(tmp_path))
    await store.close()


OWNED = AccessRules(owners=("olga",))


async def test_without_any_list_only_the_owner_has_access(place: Place) -> None:
    door = place.gate(OWNED)
    assert (await door.send(place.says("olga"))).status == "accepted"
    assert (await door.send(place.says("ada"))).status == "dropped"
    assert (await place.gate(AccessRules()).send(place.says("ada"))).status == "dropped"
    assert [message.author.id for message in place.inside.taken] == ["olga"]
    assert place.inside.said == []


async def test_the_owners_last_direct_chat_is_remembered(place: Place) -> None:
    door = place.gate(AccessRules(owners=("olga",), allow=("ada",)))
    here, there = (make_thread_id(PLATFORM, name, "1") for name in ("here", "there"))
    for user, thread, direct, kept in (
        ("olga", here, False, None),
        ("ada", here, True, None),
        ("olga", here, True, here),
        ("olga", there, True, there),
        ("ada", here, True, there),
        ("olga", here, True, here),
    ):
        await door.send(msgspec.structs.replace(place.says(user, direct=direct), thread=thread))
        assert await place.store.settings.get(*OWNER_IN) == kept


async def test_a_deletion_without_an_author_passes(place: Place) -> None:
    door, asked = place.gate(OWNED), place.says("olga")
    for author in (UNTOLD, asked.author, place.says("ada").author):
        await door.send(Deletion(asked.thread, asked.key, author))
    assert [message.author.id for message in place.inside.taken] == ["", "olga"]


async def test_trust_comes_from_the_rules_and_not_from_the_message(place: Place) -> None:
    for rules, trusted in ((AccessRules(allow=("ada",)), True), (AccessRules(allow=("*",)), False)):
        await place.gate(rules).send(place.says("ada"))
        assert place.inside.taken[-1].author.trusted is trusted


async def test_the_owner_pairs_a_person_who_writes_directly(place: Place) -> None:
    door = place.gate(OWNED)
    for _ in range(3):
        assert (await door.send(place.says("ada", direct=True))).status == "dropped"
    (said,) = place.inside.said
    code = said.split("shoal pair ")[1][:8]
    assert code not in (await place.store.settings.get(SCOPE, f"people:{PLATFORM}") or "")
    await door.send(place.says("eve", f"pair {code}"))
    assert (await door.send(place.says("ada"))).status == "dropped"
    await door.send(place.says("olga", f"pair {code.lower()}"))
    assert place.inside.said[-1] == "ada can now talk to me."
    assert (await door.send(place.says("ada"))).status == "accepted"
    with pytest.raises(NotFound):
        await place.pairing.confirm(code, (PLATFORM,), "owner")


async def test_a_code_expires_and_a_wrong_code_is_refused(place: Place) -> None:
    code = await place.pairing.ask(PLATFORM, Author("ada", trusted=True))
    with pytest.raises(NotFound):
        await place.pairing.confirm("WRONGONE", (PLATFORM,), "owner")
    await place.clock.advance(3600)
    with pytest.raises(NotFound):
        await place.pairing.confirm(code, (PLATFORM,), "owner")
    assert await place.pairing.people(PLATFORM) == ()


async def test_the_number_of_codes_is_limited(place: Place) -> None:
    door = place.gate(OWNED)
    for number in range(20):
        await door.send(place.says(f"stranger{number}", direct=True))
    assert len(place.inside.said) == 5


async def test_an_unreadable_list_closes_access(place: Place) -> None:
    door = place.gate(OWNED)
    await place.store.settings.put(SCOPE, f"people:{PLATFORM}", '{"paired": [{"user": "ada"}]}')
    assert (await door.send(place.says("ada"))).status == "accepted"
    await place.store.settings.put(SCOPE, f"people:{PLATFORM}", '{"paired": [{"user": "ada"}')
    assert (await door.send(place.says("ada"))).status == "dropped"
    assert (await door.send(place.says("olga"))).status == "accepted"


async def test_a_persons_messages_are_rate_limited(place: Place) -> None:
    door = place.gate(AccessRules(allow=("ada", "bob")))
    found = [(await door.send(place.says("ada"))).status for _ in range(MESSAGES_BURST + 5)]
    assert found == ["accepted"] * MESSAGES_BURST + ["busy"] * 5
    assert (await door.send(place.says("bob"))).status == "accepted"
    await place.clock.advance(2)
    assert [(await door.send(place.says("ada"))).status for _ in range(2)] == ["accepted", "busy"]


async def test_a_text_decision_starts_no_turn(place: Place) -> None:
    await asked(place.store, place.clock, "01ABCDEFGH")
    door = place.gate(AccessRules(allow=("ada",)))
    for text in ("allow 01ABCDEFGH", "deny cdefgh"):
        assert (await door.send(place.says("ada", text))).status == "accepted"
    assert place.inside.decided == [("01ABCDEFGH", True, "ada"), ("01ABCDEFGH", False, "ada")]
    assert place.inside.said == ["Allowed.", "Denied."]
    place.inside.settled = True
    await door.send(place.says("ada", "allow 01ABCDEFGH"))
    assert place.inside.said[-1] == "It was decided already."
    assert place.inside.taken == []
    await door.send(place.says("ada", "ok thanks"))
    assert len(place.inside.taken) == 1
    await door.send(place.says("eve", "allow 01ABCDEFGH"))
    with pytest.raises(Forbidden):
        await door.decide(ApprovalId("01ABCDEFGH"), True, Asker(trust="trusted", user="eve", platform=PLATFORM))
    assert len(place.inside.decided) == 2


def test_access_rules_are_applied() -> None:
    ops = Author("ada", roles=("ops",), trusted=True)
    assert admit(AccessRules(allow=("role:ops",)), ops, "c").trusted
    assert not admit(AccessRules(allow=("ada",), channels=("c",)), ops, "d").allowed
    assert admit(AccessRules(owners=("ada",), channels=("c",)), ops, "d").owner
    assert not admit(AccessRules(allow=("*",)), Author("ada", is_bot=True, trusted=True), "c").allowed
    assert not admit(AccessRules(allow=("*", "")), Author("", trusted=True), "c").allowed


@given(st.text(), st.lists(st.text()), st.lists(st.text()))
def test_only_listed_people_have_access(user: str, allow: list[str], paired: list[str]) -> None:
    found = admit(AccessRules(allow=tuple(allow)), Author(user, trusted=True), "c", paired)
    assert found.allowed == (bool(user) and (user in allow or user in paired or "*" in allow))


@given(st.binary(min_size=8))
def test_a_code_is_accepted_in_any_spelling(entropy: bytes) -> None:
    code = make_code(entropy)
    assert is_code(f" {code[:4].lower()}-{code[4:]} ", code_digest(code))
    assert not is_code(code[:-1], code_digest(code))


async def test_a_command_of_an_untrusted_person_does_not_run(place: Place) -> None:
    door = place.gate(AccessRules(allow=("ada",)))
    at = place.clock.now()
    asked = CommandRequest(THREAD, Author("ada", trusted=True), "new", "", "k1", at)
    assert await door.command(asked) == "Did /new."
    refused = CommandRequest(THREAD, Author("mallory", trusted=True), "new", "", "k2", at)
    assert "not have access" in await door.command(refused)
    assert (await door.suggestions(asked), await door.suggestions(refused)) == (("one/tall",), ())
    assert [found.author.id for found in place.inside.requests] == ["ada"]


async def test_a_message_that_is_a_command_runs_and_its_receipt_has_the_answer(place: Place) -> None:
    door = place.gate(AccessRules(allow=("ada",)))
    said = place.says("ada", "/clear  now")
    receipt = await door.send(said)
    assert (receipt.status, receipt.answer) == ("answered", "Did /new.")
    assert await door.send(said) == msgspec.structs.replace(receipt, answer="")
    (asked,) = place.inside.requests
    assert (asked.name, asked.argument, asked.author.trusted) == ("new", "now", True)
    assert not place.inside.taken


async def test_an_untrusted_persons_command_is_an_ordinary_message(place: Place) -> None:
    assert (await place.gate(OWNED).send(place.says("ada", "/new", direct=True))).status == "dropped"
    assert "send this code to my owner" in place.inside.said[0]
    assert not place.inside.requests


async def test_a_command_runs_once_per_key(place: Place) -> None:
    door = place.gate(AccessRules(allow=("ada",)))
    asked = CommandRequest(THREAD, Author("ada", trusted=True), "stop", "", "k0", place.clock.now())
    place.inside.broken = True
    with pytest.raises(StoreError):
        await door.command(asked)
    place.inside.broken = False
    assert await door.command(asked) == "Did /stop."
    assert await door.command(asked) == ""
    restarted = place.gate(AccessRules(allow=("ada",)))
    assert await restarted.command(asked) == ""
    assert await restarted.command(msgspec.structs.replace(asked, key="k1")) == "Did /stop."
    place.clock.jump(31 * 86_400)
    forgotten = [gone async for gone in place.store.bookkeeping.forget(place.clock.now() - timedelta(days=30)) if gone]
    assert forgotten == [2]


def linked(*identities: str, roles: tuple[str, ...] = (), **rules: AccessRules) -> Links:
    return Links(People([Person(identities, roles)]), rules)


HERE = f"{PLATFORM}:ada"


async def test_a_guest_of_another_platform_is_a_guest_here(place: Place) -> None:
    for there in (AccessRules(allow=("77",)), AccessRules(owners=("77",))):
        door = place.gate(OWNED, linked(HERE, "other:77", other=there))
        assert (await door.send(place.says("ada"))).status == "accepted"
        assert place.inside.taken[-1].author.trusted
        assert (await door.send(place.says("eve"))).status == "dropped"


async def test_the_owner_of_another_platform_is_the_owner_here(place: Place) -> None:
    code = await place.pairing.ask(PLATFORM, Author("bob", trusted=True))
    guest = place.gate(OWNED, linked(HERE, "other:77", other=AccessRules(allow=("77",))))
    await guest.send(place.says("ada", f"pair {code}"))
    assert await place.pairing.people(PLATFORM) == ()
    owner = place.gate(OWNED, linked(HERE, "other:77", other=AccessRules(owners=("77",))))
    await owner.send(place.says("ada", f"pair {code}"))
    assert await place.pairing.people(PLATFORM) == ("bob",)


async def test_a_person_paired_elsewhere_is_a_guest_here(place: Place) -> None:
    links = linked(HERE, "other:77", other=AccessRules())
    assert (await place.gate(OWNED, links).send(place.says("ada"))).status == "dropped"
    await place.pairing.confirm(await place.pairing.ask("other", Author("77", trusted=True)), ["other"], "olga")
    assert (await place.gate(OWNED, links).send(place.says("ada"))).status == "accepted"


async def test_an_allow_all_rule_does_not_extend_to_another_platform(place: Place) -> None:
    links = linked(HERE, "other:77", other=AccessRules(allow=("*",)))
    assert (await place.gate(OWNED, links).send(place.says("ada"))).status == "dropped"


async def test_a_linked_identity_gives_no_access_to_a_closed_channel(place: Place) -> None:
    rules = AccessRules(owners=("olga",), channels=("elsewhere",))
    guest = linked(HERE, "other:77", other=AccessRules(allow=("77",)))
    assert (await place.gate(rules, guest).send(place.says("ada"))).status == "dropped"


async def test_a_configured_role_counts_like_a_platform_role(place: Place) -> None:
    rules = AccessRules(allow=("role:ops",))
    assert (await place.gate(rules).send(place.says("ada"))).status == "dropped"
    links = linked(HERE, "other:77", roles=("ops",))
    assert (await place.gate(rules, links).send(place.says("ada"))).status == "accepted"
    assert (await place.gate(rules, links).send(place.says("ada", is_bot=True))).status == "dropped"


async def test_a_reaction_carries_its_authors_trust(place: Place) -> None:
    door = place.gate(AccessRules(("olga",), ("ada",)))
    for user in ("olga", "ada", "mallory"):
        assert await door.react(Reaction(THREAD, "👍", Author(user, trusted=True), "m1", "owner")) == ""
    found = [(one.author.id, one.author.trusted, one.trust) for one in place.inside.reactions]
    assert found == [("olga", True, "owner"), ("ada", True, "trusted")], "a stranger's emoji means nothing"


async def test_a_decision_beyond_the_rate_limit_gets_an_answer(place: Place) -> None:
    door = place.gate(AccessRules(("olga",), ("ada",)))
    for _ in range(MESSAGES_BURST):
        assert await door.react(Reaction(THREAD, "👍", Author("ada", trusted=True), "m1")) == ""
    for emoji in ("👍", "👎", "♾", "🛑"):
        assert "Try again" in await door.react(Reaction(THREAD, emoji, Author("ada", trusted=True), "m1"))
    assert await door.react(Reaction(THREAD, "🎉", Author("ada", trusted=True), "m1")) == ""
    assert await door.react(Reaction(THREAD, "👍", Author("mallory", trusted=True), "m1")) == ""
    assert len(place.inside.reactions) == MESSAGES_BURST
