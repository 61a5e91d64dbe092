"""A process that receives a voice message on Telegram and replies with speech. It is killed at a chosen write."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.sandbox.host import HostSandbox
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.crash import serve_forked
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.platforms.telegram import TOKEN


class VoiceOrder(msgspec.Struct):
    """One run.

    - `home`: the path of the home directory.
    - `telegram`, `model`: the addresses of the fake services.
    - `at`: the durable write at which the process is killed, or 0 for no kill.
    """

    home: str
    telegram: str
    model: str
    at: int = 0
    side: Side = "before"


async def live(order: VoiceOrder) -> int:
    drivers: list[KillingDriver] = []

    def wrap(driver: Driver) -> Driver:
        drivers.append(KillingDriver(driver, order.side, order.at))
        return drivers[0]

    overrides: Mapping[str, object] = {
        "platforms": {"telegram": [{"token": TOKEN, "api_base": order.telegram, "owner": "7"}]},
        "permissions": {"default_profile": "open"},
        "sandbox": {"kind": "host"},
        "mailbox": {"pause_seconds": 0},
        "model": {"name": "one/fake-1"},
        "providers": {"one": {"kind": "openai", "base_url": f"{order.model}/v1", "api_key": "sk-one"}},
        "speech": {"recognition": "one/whisper-1", "speaking": "one/tts-1"},
    }
    parts = Overrides(sandbox=HostSandbox(), wrap_driver=wrap)
    async with open_app(load_config(Path(order.home), {}, overrides), parts) as app:
        store = app[Store]
        while not (
            len(await store.ledger.usage(1)) == 3
            and not await store.inbox.waiting()
            and await store.outbox.depth() == 0
        ):
            await app[Clock].sleep(0.02)
    return drivers[0].writes


if __name__ == "__main__":
    serve_forked(VoiceOrder, live)
