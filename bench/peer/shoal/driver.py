"""Shoal in the harness that compares it with similar projects: `open_app` in this process, configured as for a new user
with a key.

A turn takes the whole path: the platform's message → orchestrator.send (inbox, one durable commit) → engine → actor →
prompt and context → model over HTTP, streamed → tools with permissions and sandbox → journal (SQLite, FULL) → outbox →
sender → the platform's post, which ends the turn. Only the platform belongs to the driver.

Two settings differ from the defaults. The profile lets `bash true` run without asking, so tool calls run. The unknown
model has a large window, so a long history is sent completely and not summarized. The sandbox keeps its default,
`auto`.
"""

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path

from shoal.kernel.clock import Clock
from shoal.threads.orchestrator import Orchestrator

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))

CONFIG = """
[model]
name = "fake/fake-1"
context_tokens_max = 1000000

[providers.fake]
kind = "openai"
base_url = "{llm}/v1"
api_key = "sk-fake"

[permissions]
default_profile = "bench"

[permissions.profiles.bench]
extends = "standard"
allow = ["tool:bash:true"]
{more}"""


def write_config(home: Path, llm: str, more: str = "") -> None:
    """Create the home directory as `shoal init` does for a person with a key."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "shoal.toml").write_text(CONFIG.format(llm=llm, more=more))


def make_chat():
    """Return an in-memory chat platform. A post to a thread answers the message that waits there."""
    from shoal.kernel.ids import ThreadId
    from shoal.kernel.posts import OutboundPost
    from shoal.platforms.local import WebAdapter

    class Chat(WebAdapter):
        """A web adapter that delivers posts to the waiting turns."""

        def __init__(self) -> None:
            super().__init__(platform="bench")
            self.waiting: dict[ThreadId, asyncio.Future[str]] = {}

        async def post(self, post: OutboundPost) -> str:
            """Deliver a post to the turn that waits for it."""
            self.waiting.pop(post.thread).set_result(post.markdown)
            return post.key

    return Chat()


class Driver:
    """The interface of the harness."""

    async def start(self) -> None:
        """Open the app as `shoal run` does, but without the page."""
        from shoal.app import Overrides, open_app
        from shoal.config import load_config
        from shoal.kernel.ids import make_thread_id
        from shoal.kernel.messages import Author, Prompt
        from shoal.maintenance import collect_seldom, share_one_heap
        from shoal.permissions.access import AccessRules

        share_one_heap()
        self.versions = {name: version(name) for name in ("shoal", "httpx2", "msgspec")}
        self.thread, self.prompt, self.author = make_thread_id, Prompt, Author("ada", "Ada", trusted=True)
        self.chat = make_chat()
        config = load_config(Path(os.environ["SHOAL_HOME"]), os.environ, {})
        access = {self.chat.platform: AccessRules(allow=("ada",))}
        self.opening = open_app(config, Overrides(adapters=(self.chat,), access=access))
        self.app = await self.opening.__aenter__()
        collect_seldom()

    async def turn(self, session: str, text: str) -> str:
        """Send a person's message in a thread and return the answer that Shoal posts."""
        clock = self.app[Clock]
        thread = self.thread("bench", "harbour", session)
        reply = self.chat.waiting[thread] = asyncio.get_running_loop().create_future()
        key = clock.new_id()
        receipt = await self.app[Orchestrator].send(
            self.prompt(thread, key, text, self.author, clock.now(), message_id=key)
        )
        assert receipt.status == "accepted", receipt
        return await reply

    async def stop(self) -> None:
        """Drain and close the app."""
        await self.opening.__aexit__(None, None, None)


if __name__ == "__main__":
    if sys.argv[1:] == ["config"]:
        write_config(Path(os.environ["SHOAL_HOME"]), os.environ["BENCH_LLM"])
    else:
        import driverlib  # pyrefly: ignore[missing-import]

        driverlib.main(Driver)
