"""Contract tests for full-text search and for artifacts."""

from datetime import timedelta

from shoal.kernel.events import AssistantSaid, Event, ToolFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author
from shoal.kernel.records import Commit
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, opened


def spoken(event: Event) -> str:
    """Return the text of a message event."""
    return event.data.text if isinstance(event.data, UserSaid | AssistantSaid) else ""


async def said(store: Store, *texts: str) -> None:
    """Append messages with these texts to the thread."""
    await opened(store)
    await store.journal.append(THREAD, [UserSaid(text, Author("u1", trusted=True)) for text in texts])


class SearchRules:
    """Tests of `SearchIndex` and `ArtifactStore`, mixed into `StoreContract`."""

    async def test_a_search_finds_messages_with_all_its_words(self, store: Store) -> None:
        await said(store, "The green tea is out", "green", "Tea, GREEN again", "x" * 100_000 + " far off")
        hits = await store.search.messages("tea green")
        assert [spoken(event) for event in hits] == ["Tea, GREEN again", "The green tea is out"]
        assert hits[0].thread == THREAD

    async def test_a_search_may_contain_any_text(self, store: Store) -> None:
        await said(store, "plain words", 'a NUL \0 and a quote " and a \\ too', "zebra \\u0000 stripe")
        for words in ('"', "NOT plain", "plain* OR", "(plain", "plain' ;--", "", "%", ":x", "AND"):
            await store.search.messages(words)
        assert len(await store.search.messages('"plain"')) == 1
        assert len(await store.search.messages("quote")) == 1
        assert len(await store.search.messages("stripe")) == 1

    async def test_scripts_without_spaces_are_searched_by_character(self, store: Store) -> None:
        """Characters that are adjacent in the query must be adjacent in the message."""
        await said(store, "今日の東京は雨です", "GPT模型和工具", "東と京", "서울의 날씨")
        assert [spoken(event) for event in await store.search.messages("東京")] == ["今日の東京は雨です"]
        assert [spoken(event) for event in await store.search.messages("gpt模型 工具")] == ["GPT模型和工具"]
        assert [spoken(event) for event in await store.search.messages("날씨")] == ["서울의 날씨"]

    async def test_a_search_can_be_limited_to_a_channel(self, store: Store) -> None:
        """A channel is given as the prefix of its thread ids."""
        await said(store, "treasure")
        platform, channel, _ = THREAD.split(":")
        assert len(await store.search.messages("treasure", within=f"{platform}:{channel}:")) == 1
        assert len(await store.search.messages("treasure", within=THREAD)) == 1
        assert await store.search.messages("treasure", within=f"{platform}:{channel[:-1]}:") == []
        assert await store.search.messages("treasure", within=THREAD[:-1]) == []

    async def test_tool_results_are_not_searched(self, store: Store) -> None:
        lease = await opened(store)
        result = ToolFinished(CallId("c1"), "bash", "needle")
        await store.journal.commit(lease, Commit(TurnId("T1"), (result, AssistantSaid("a needle I say"))))
        assert [spoken(event) for event in await store.search.messages("needle")] == ["a needle I say"]

    async def test_an_artifact_is_stored_with_its_event(self, store: Store, clock: ManualClock) -> None:
        """A lookup accepts the first characters of a digest."""
        lease = await opened(store)
        result = ToolFinished(CallId("c1"), "bash", "…", artifact="ab" * 16, artifact_bytes=9000, tainted_by="page")
        await store.journal.commit(lease, Commit(TurnId("T1"), (result,)))
        (artifact,) = await store.artifacts.of_thread(THREAD)
        assert (artifact.digest, artifact.name, artifact.size_bytes, artifact.tainted_by) == (
            "ab" * 16,
            "bash",
            9000,
            "page",
        )
        assert artifact.created_at == clock.now()
        assert await store.artifacts.find(THREAD, "abababab") == artifact
        assert await store.artifacts.find(ThreadId("web:lobby:other"), "abababab") is None

    async def test_expired_artifacts_are_returned_when_no_thread_keeps_them(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await opened(store)
        for digest in ("aa", "bb"):
            result = ToolFinished(CallId(digest), "bash", "…", artifact=digest * 16, artifact_bytes=1)
            await store.journal.commit(lease, Commit(TurnId("T1"), (result,)))
        await clock.advance(100)
        other = await opened(store, "T2", ThreadId("web:lobby:other"))
        again = ToolFinished(CallId("c9"), "bash", "…", artifact="bb" * 16, artifact_bytes=1)
        await store.journal.commit(other, Commit(TurnId("T2"), (again,)))
        expired = await store.artifacts.expire(clock.now() - timedelta(seconds=50))
        assert expired.forgotten == [(THREAD, "aa" * 16), (THREAD, "bb" * 16)]
        assert expired.unkept == ["aa" * 16]
        assert await store.artifacts.of_thread(THREAD) == []
