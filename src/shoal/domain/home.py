"""Where things lie under the home directory: names only, nothing is read or made here."""

from pathlib import Path

from shoal.domain.ids import ThreadId


class Home:
    """The layout of a home directory (see docs/contract.md)."""

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def config_file(self) -> Path:
        """`shoal.toml`."""
        return self.root / "shoal.toml"

    @property
    def database_file(self) -> Path:
        """`shoal.db`."""
        return self.root / "shoal.db"

    @property
    def lock_file(self) -> Path:
        """`shoal.lock`: held while a process works here; its text tells who."""
        return self.root / "shoal.lock"

    @property
    def token_file(self) -> Path:
        """`token`: the HTTP token, mode 0600."""
        return self.root / "token"

    @property
    def models_file(self) -> Path:
        """`available_models.json`."""
        return self.root / "available_models.json"

    @property
    def template(self) -> Path:
        """`template/`: what a new agent is made from."""
        return self.root / "template"

    @property
    def data(self) -> Path:
        """`data/`: memory, skills, events and the threads' files."""
        return self.root / "data"

    @property
    def events(self) -> Path:
        """`data/events/`: event files that start turns."""
        return self.data / "events"

    @property
    def artifacts(self) -> Path:
        """`data/artifacts/`: large results and attachments, by digest."""
        return self.data / "artifacts"

    def agent(self, name: str) -> Path:
        """`agents/NAME/`."""
        return self.root / "agents" / name

    def platform(self, thread: ThreadId) -> Path:
        """`data/{platform}/`."""
        return self.data / thread.split(":")[0]

    def channel(self, thread: ThreadId) -> Path:
        """`data/{platform}/{channel}/`."""
        platform, channel, _ = thread.split(":")
        return self.data / platform / channel

    def thread(self, thread: ThreadId) -> Path:
        """`data/{platform}/{channel}/{thread}/`; the id's parts are safe as file names as they stand."""
        return self.data.joinpath(*thread.split(":"))

    def scratch(self, thread: ThreadId) -> Path:
        """The thread's `scratch/`: large outputs and temporary work."""
        return self.thread(thread) / "scratch"

    def attachments(self, thread: ThreadId) -> Path:
        """The thread's `attachments/`."""
        return self.thread(thread) / "attachments"
