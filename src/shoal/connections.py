"""Access rules of platform accounts, and connecting and disconnecting accounts while Shoal runs."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from shoal.accounts import OWNERS, account_agents, links_of, platform_owners
from shoal.backend import Backend
from shoal.delivery.barred import BarredChats
from shoal.delivery.sender import Senders
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import ChatAdapter, InboxPort, OwnerNotifier
from shoal.kernel.settings import Config
from shoal.notices import Notices
from shoal.permissions.access import AccessRules, Links
from shoal.store.store import Store
from shoal.threads.access_gate import AccessGate
from shoal.threads.orchestrator import Orchestrator


def approvers_of(config: Config) -> list[str]:
    """Return the people who may decide any approval: the configured approvers, followed by the owner."""
    return [*config.permissions.approvers, *OWNERS, *platform_owners(config)]


class Standing(msgspec.Struct, eq=False):
    """The access rules of each platform, the approvers, and the agent of each account.

    The values change when the configuration changes. `access` contains rules that replace the configured rules.
    `gated` contains the platforms with an access gate.
    """

    access: Mapping[str, AccessRules]
    links: Links
    gated: set[str]
    approvers: list[str]
    accounts: dict[str, str]

    def apply(self, config: Config, platforms: Iterable[str]) -> None:
        self.links.become(links_of(config, platforms, self.access))
        self.approvers[:] = approvers_of(config)
        self.accounts.clear()
        self.accounts.update(account_agents(config))


class Connections(msgspec.Struct, eq=False):
    """The connected accounts by platform. `configured` also includes accounts that are not connected in this
    process.
    """

    adapters: dict[str, ChatAdapter]
    configured: Mapping[str, ChatAdapter | None]
    standing: Standing
    config: LiveConfig
    backend: Backend
    store: Store
    senders: Senders
    orchestrator: Orchestrator
    notices: Notices
    inbox: InboxPort
    make_gate: Callable[[], AccessGate]
    gates: dict[str, AccessGate] = msgspec.field(default_factory=dict[str, AccessGate])

    def add(self, adapter: ChatAdapter) -> None:
        name = adapter.platform
        self.adapters[name] = adapter
        self.standing.gated.add(name)
        self.senders.add(adapter)
        self.serve(adapter)

    def serve(self, adapter: ChatAdapter) -> None:
        name = adapter.platform
        if name in self.standing.gated:
            self.gates[name] = self.make_gate()
        if isinstance(adapter, OwnerNotifier):
            adapter.notify_owner = self.notices.notify_owner
        receive = partial(adapter.run, self.gates.get(name, self.inbox))
        barred = BarredChats(name, self.store.settings, partial(self.notices.of_unposted, will_retry=True))
        orchestrator = self.orchestrator
        send = partial(self.senders.run, name, orchestrator.opened, orchestrator.gave_up, barred)
        self.backend.add_single(f"platform {name}", receive, send, close=adapter.close)

    async def remove(self, name: str) -> None:
        """Disconnect an account. Posts to its threads wait until it is connected again."""
        await self.backend.end(f"platform {name}")
        self.adapters.pop(name, None)
        self.senders.drop(name)
        self.gates.pop(name, None)
        self.standing.gated.discard(name)

    def apply(self, config: Config) -> None:
        self.config.current = config
        self.standing.apply(config, self.adapters)
