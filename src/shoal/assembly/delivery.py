"""Opens file storage, post senders and notices."""

from shoal.assembly.outside import Adapters
from shoal.backend import Role
from shoal.connections import Standing
from shoal.delivery.hub import Hub
from shoal.delivery.sender import Senders
from shoal.kernel.clock import Clock
from shoal.kernel.crash_log import CrashLog
from shoal.kernel.files import Files, Folders
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.maintenance import Upkeep
from shoal.notices import Notices
from shoal.services import Services
from shoal.store.store import Store
from shoal.tools.executor import LiveToolServices
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.storage import files_of, open_files, open_folders
from shoal.tools.taint_spans import FileClock
from shoal.tools.tainted_files import MarkedFiles


async def open_delivery(services: Services, role: Role, file_clock: FileClock, notes: list[str]) -> None:
    """Open file storage, the senders of posts, and notices to the owner. Raises StoreError.

    `notes` are the initial notes for the operator. If `role` is `offline`, the storage is neither tested nor changed.
    """
    config, home, clock, store = services[LiveConfig].current, services[Home], services[Clock], services[Store]
    adapters, hub, approvers = services[Adapters], services[Hub], services[Standing].approvers
    files = files_of(config.files, home) if role == "offline" else await open_files(config.files, home)
    marks = MarkedFiles(store.settings, home, file_clock)
    prompt_files = PromptFiles(marks, home)
    folders = open_folders(config.files, files, store.settings, home, marks)
    crash_log = CrashLog(home.root / "begun" / f"work-{role}")
    if role != "offline":
        crash_log.open()
        await crash_log.share(store.settings, has_others=bool(config.database.url))
    senders = Senders(adapters, hub, store.outbox, clock, folders, crash_log, home.restored_at())
    outlets = LiveToolServices(files.below("artifacts"), senders.post)
    notices = Notices(store, clock, adapters, senders.post, notes, lambda: tuple(approvers))
    upkeep = Upkeep(store.settings, clock, notices.notify_owner)
    services.add(files, Files)
    services.add(folders, Folders)
    for service in (marks, prompt_files, crash_log, senders, outlets, notices, upkeep):
        services.add(service)
