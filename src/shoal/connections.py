"""The accounts on platforms: who may speak on each, and connecting them while Shoal runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from shoal.accounts import OWNERS, account_agents, links_of, platform_owners
from shoal.backend import Backend
from shoal.delivery.barred import BarredChats
from shoal.delivery.sender import Senders
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import ChatAdapter, InboxPort, TellsOwner
from shoal.kernel.settings import Config
from shoal.notices import Notices
from shoal.permissions.access import AccessRules, Links
from shoal.store.store import Store
from shoal.threads.access_gate import AccessGate
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.voice import VoiceService


def approvers_of(config: Config) -> list[str]:
    """Who may answer any question: those of the configuration, and the owner everywhere."""
    return [*config.permissions.approvers, *OWNERS, *platform_owners(config)]


@dataclass
class Standing:
    """Who may speak on each platform and decide, and whose agent an account has; settled anew when that changes.

    `access` are rules in the place of the configuration's, `gated` the platforms before which a gate stands.
    """

    access: Mapping[str, AccessRules]
    links: Links
    gated: set[str]
    approvers: list[str]
    accounts: dict[str, str]

    def settle(self, config: Config, platforms: Iterable[str]) -> None:
        """Let all of it be as a configuration says, for everybody who holds a part of it."""
        self.links.become(links_of(config, platforms, self.access))
        self.approvers[:] = approvers_of(config)
        self.accounts.clear()
        self.accounts.update(account_agents(config))


@dataclass
class Connections:
    """The connected accounts by their platform. `configured` also has those that are not connected here."""

    adapters: dict[str, ChatAdapter]
    configured: Mapping[str, ChatAdapter | None]
    standing: Standing
    config: LiveConfig
    backend: Backend
    store: Store
    senders: Senders
    orchestrator: Orchestrator
    notices: Notices
    voice: VoiceService
    inbox: InboxPort
    make_gate: Callable[[], AccessGate]
    gates: dict[str, AccessGate] = field(default_factory=dict[str, AccessGate])

    def add(self, adapter: ChatAdapter) -> None:
        """Connect one more account, in a Shoal that runs already."""
        name = adapter.platform
        self.adapters[name] = adapter
        self.standing.gated.add(name)
        self.senders.add(adapter)
        self.serve(adapter)

    def serve(self, adapter: ChatAdapter) -> None:
        """Take messages of an account in, and deliver its posts."""
        name = adapter.platform
        if name in self.standing.gated:
            self.gates[name] = self.make_gate()
        if isinstance(adapter, TellsOwner):
            adapter.tell_owner = self.notices.tell_owner
        receive = partial(adapter.run, self.gates.get(name, self.inbox))
        barred = BarredChats(name, self.store.settings, partial(self.notices.of_unposted, is_kept=True))
        orchestrator = self.orchestrator
        send = partial(self.senders.run, name, orchestrator.opened, orchestrator.gave_up, self.voice.say, barred)
        self.backend.add_single(f"platform {name}", receive, send)

    async def remove(self, name: str) -> None:
        """End an account's connection; what its threads have to post waits until it is there again."""
        await self.backend.end(f"platform {name}")
        self.adapters.pop(name, None)
        self.senders.drop(name)
        self.gates.pop(name, None)
        self.standing.gated.discard(name)

    def settle(self, config: Config) -> None:
        """Let who may speak and decide, and whose agent an account has, be as a configuration says."""
        self.config.current = config
        self.standing.settle(config, self.adapters)
