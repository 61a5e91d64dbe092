"""The configuration as records, a section a class: each part of the system is given the section that is its own.

Each key's default and description are what docs/configuration.md shows; `shoal.config` reads and checks them.
"""

import shlex
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta

from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL_OR_EMPTY, Section
from shoal.kernel.settings_platforms import PlatformsSettings
from shoal.kernel.speech import SpeechSettings
from shoal.kernel.zones import local_zone, zone_named

SectionT = TypeVar("SectionT", bound=Section)


class ModelSettings(Section, frozen=True, kw_only=True):
    """The model that answers where an agent names none."""

    live = frozenset({"name"})

    name: str = ""
    """PROVIDER/MODEL, or a model of available_models.json; empty: the first provider with a key, Ollama, or "demo"."""
    max_output_tokens: Annotated[int, Meta(ge=1)] = 4096
    """Longest answer of one model call, in tokens."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    """How freely the model chooses its words; 1.0, the providers' own, is not sent: some models refuse the field."""
    context_tokens_max: Annotated[int, Meta(ge=0)] = 0
    """Window to use, in tokens; 0 takes what the catalogue knows of the model, and 128,000 where that is nothing."""
    fallback: tuple[str, ...] = ()
    """Further models, tried in order when a provider is down or out of quota."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 3600.0
    """How long a person's message waits for a model that is down, busy or out of reach, in seconds; 0 fails at once."""


DollarsPerMillion: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000)]
Price: TypeAlias = DollarsPerMillion | dict[Literal["input", "output", "cached", "cache_write"], DollarsPerMillion]
"""US dollars a million tokens, for all of them or by kind. A kind that is not named costs what input does."""


class ProviderSettings(Section, frozen=True, kw_only=True):
    """A service that runs models, under a name of yours; anthropic, openai, gemini, openrouter, ollama and local bring
    their kind and address along."""

    live = frozenset({"kind", "base_url", "api_key", "model_file", "price", "prices"})

    kind: Annotated[str, Meta(examples=["anthropic", "openai", "openai-responses", "gemini", "local"])]
    """API protocol; openai is Chat Completions, which most services and servers offer."""
    base_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Where its API starts, version part included; empty takes the kind's own."""
    api_key: Secret = NO_SECRET
    """The key; empty for servers that need none."""
    models: tuple[str, ...] = ()
    """Models to offer beside those the provider lists; the first is its default."""
    headers: dict[str, Secret] = {}
    """Further HTTP headers of each request."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Longest silence within one answer, in seconds; five times as long where the server keeps the connection open."""
    model_file: str = ""
    """For kind local: the GGUF file, absolute or below the home directory."""
    price: Price | None = None
    """US dollars a million tokens, a number or { input = 0.5, output = 1.5, cached = 0.05 }; 0 is a price. Without it
    the public price lists count where they know the model; kind local and Ollama are free."""
    prices: dict[str, Price] = {}
    """The same for single models, by name: { "qwen3-32b" = { input = 0.2, output = 0.6 } }."""


class DatabaseSettings(Section, frozen=True, kw_only=True):
    """Where journals and queues are kept."""

    url: Secret = NO_SECRET
    """Database of many machines, postgresql://USER:PASSWORD@HOST/NAME; empty is SQLite in the home directory."""
    synchronous: Literal["full", "normal"] = "full"
    """SQLite: full survives a power cut, normal only a crash of the process, and is faster."""
    connections_max: Annotated[int, Meta(ge=2, le=1000)] = 10
    """PostgreSQL connections of one process."""
    bookkeeping_days: Annotated[float, Meta(ge=0, le=10_000)] = 30.0
    """How long rows that only served delivery are kept once they are done, in days; 0 is without end."""


class FilesSettings(Section, frozen=True, kw_only=True):
    """Where stored results, messages' files and workspaces are when several machines share the work."""

    url: Annotated[str, Meta(pattern=r"^$|^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/\S*)?$")] = ""
    """An S3-compatible store, s3://BUCKET/PREFIX; empty keeps all in the home directory, which may be shared."""
    endpoint: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address of a store that is not Amazon's."""
    region: str = ""
    """The bucket's region; empty takes AWS_REGION."""
    access_key: Secret = NO_SECRET
    """Id of the key; empty takes the usual AWS variables or the machine's role."""
    secret_key: Secret = NO_SECRET
    """The key."""
    workspace_sync: bool = True
    """With a url: whether workspaces and threads' files follow their work; false where they are on a shared volume."""


class TurnsSettings(Section, frozen=True, kw_only=True):
    """Bounds of one turn."""

    steps_max: Annotated[int, Meta(ge=1, le=10_000)] = 25
    """Model calls a turn may take; then one last call without tools answers."""
    tool_errors_in_a_row_max: Annotated[int, Meta(ge=1)] = 5
    """Failed tool calls in a row that end the turn's tool use; skipped, cut-off and denied ones do not count."""
    steer: Literal["skip", "finish"] = "skip"
    """What a message to a running turn does to the step's remaining tool calls."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 3600.0
    """Longest a turn may work, in seconds; waiting for a person does not count."""
    model_attempts_max: Annotated[int, Meta(ge=1, le=100)] = 4
    """Tries of one model call before the fallback model."""
    retry_base_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """First pause before a retry, in seconds; it doubles each time."""
    retry_after_seconds_max: Annotated[float, Meta(gt=0)] = 60.0
    """Longest pause a provider may ask for, in seconds; a longer one counts as down."""
    default_response: Annotated[str, Meta(min_length=1)] = (
        "I have nothing to add. Tell me if you expected something else."
    )
    """What is said when the model returns nothing."""


class MailboxSettings(Section, frozen=True, kw_only=True):
    """A thread's queue."""

    prompts_max: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Turns that may wait in one thread, more are answered with "busy"; what one person writes in a row is one."""
    pause_seconds: Annotated[float, Meta(ge=0, le=60)] = 1.5
    """Pause, in seconds, after which somebody who writes in several messages is answered; 0 answers each by itself."""
    idle_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Quiet time after which a thread's agent is dropped from memory, in seconds."""


class ThreadsSettings(Section, frozen=True, kw_only=True):
    """Conversations as lists show them."""

    live = frozenset({"titles"})

    titles: Literal["auto", "words", "model"] = "auto"
    """What a new thread is called: its first words, or what a model finds after the first turn. `auto` asks the model
    only where that is known to cost less than 0.05 cents."""
    title_model: str = ""
    """The model that finds titles; empty takes the agent's."""


class ContextSettings(Section, frozen=True, kw_only=True):
    """What the model gets to see."""

    reserve_tokens: Annotated[int, Meta(ge=0)] = 16_384
    """Kept free of the window for the answer and for compaction, in tokens."""
    keep_recent_tokens: Annotated[int, Meta(ge=0)] = 20_000
    """Newest part that compaction leaves word for word, in tokens."""
    window_hours: Annotated[float, Meta(ge=0)] = 24.0
    """How far back the window reaches, in hours; 0 is without end."""
    events_share: Annotated[float, Meta(gt=0, le=1)] = 0.7
    """Share of the input for the conversation."""
    artifacts_share: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Share of the input for excerpts of stored results."""
    artifact_chars_min: Annotated[int, Meta(ge=200)] = 2000
    """Tool results longer than this are stored whole and shown as an excerpt, in characters."""
    artifact_excerpt_chars: Annotated[int, Meta(ge=200, le=100_000)] = 2000
    """How much of a stored result the model sees, in characters: its beginning and its end."""
    artifact_days: Annotated[float, Meta(ge=0, le=10_000)] = 30.0
    """How long stored results are kept, in days; 0 is without end."""
    backfill_messages_max: Annotated[int, Meta(ge=0, le=1000)] = 50
    """How many messages of the platform that were missed are read in before a turn; 0 is off."""
    backfill_hours: Annotated[float, Meta(gt=0)] = 24.0
    """How old a missed message may be, in hours."""
    attachment_bytes_max: Annotated[int, Meta(ge=1024)] = 26_214_400
    """Largest attachment that is downloaded, in bytes."""
    attachment_image_bytes_max: Annotated[int, Meta(ge=1024)] = 3_000_000
    """Largest image that is sent to the model, in bytes; a larger one is made smaller. At most 3 MB count."""
    attachment_wait_seconds: Annotated[float, Meta(ge=0, le=600)] = 20.0
    """How long a turn waits for its attachments, in seconds; what takes longer comes in the background."""
    tokenizer: Literal["estimate", "exact"] = "estimate"
    """How a request is counted before it is sent: by its bytes, or with OpenAI's vocabulary (extra `tokens`)."""
    daily_notes_days: Annotated[int, Meta(ge=0, le=366)] = 3
    """How many days of daily notes stand in the prompt."""


SANDBOX_KINDS = ("auto", "bubblewrap", "docker", "host")
"""Those that are built in."""


class SandboxSettings(Section, frozen=True, kw_only=True):
    """What commands can reach while they run."""

    kind: Annotated[str, Meta(examples=["auto", "bubblewrap", "docker", "host"])] = "auto"
    """Auto takes bubblewrap; where that is missing, every command is asked for. Extensions' go by their own names."""
    network: Literal["off", "on"] | tuple[str, ...] = "off"
    """What commands reach, through a proxy: nothing, public addresses, or the hosts of a list only."""
    ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = (80, 443)
    """Ports that commands reach at public addresses with network = "on"."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Longest run of a command that sets no limit itself, in seconds."""
    output_bytes_max: Annotated[int, Meta(ge=1024)] = 10_485_760
    """Longest output kept of one stream, in bytes."""
    memory_bytes_max: Annotated[int, Meta(ge=0)] = 2_147_483_648
    """Memory of a command, in bytes; 0 sets no limit."""
    processes_max: Annotated[int, Meta(ge=0)] = 256
    """Processes a command may have at once; 0 sets no limit."""
    workspace_bytes_max: Annotated[int, Meta(ge=0)] = 2_147_483_648
    """What an agent's workspace and a thread's /scratch may each hold, in bytes; 0 sets no limit."""
    workspace_files_max: Annotated[int, Meta(ge=0)] = 200_000
    """Files and folders that they may each hold; 0 sets no limit."""
    disk_free_bytes_min: Annotated[int, Meta(ge=0)] = 536_870_912
    """What commands leave free on the disk of these folders, in bytes; 0 sets no limit."""
    image: str = ""
    """Docker: image of the containers."""
    container: str = ""
    """Docker: a running container to use instead of new ones."""


class ProfileSettings(Section, frozen=True, kw_only=True):
    """Rules for what an agent may do: regular expressions that must match a whole action. What matches deny is refused,
    else what matches allow runs, else what matches ask is asked. Of the rest the effect decides, or it is refused."""

    extends: str = ""
    """Profile whose rules are taken over first."""
    deny: tuple[str, ...] = ()
    """Actions that are refused."""
    allow: tuple[str, ...] = ()
    """Actions that run without a question."""
    ask: tuple[str, ...] = ()
    """Actions a person is asked about."""
    trusted_allow: tuple[str, ...] = ()
    """Actions that run without a question even after untrusted content was read."""
    effects: bool = False
    """Whether the effect of an action decides where no rule matches it: what reads or can be undone runs, the rest is
    asked."""
    stages: bool = False
    """Whether calls whose result the agent does not need, such as messages elsewhere, wait for one question at the end
    of the turn. Each of the others is asked about before the turn continues."""


class OverrideSettings(Section, frozen=True, kw_only=True):
    """Rules laid over a profile where every selector holds; an empty selector holds always. A later override is asked
    before an earlier one, and none takes a deny back."""

    agents: tuple[str, ...] = ()
    """Names of agents it is for."""
    platforms: tuple[str, ...] = ()
    """Platforms it is for."""
    channels: tuple[str, ...] = ()
    """Channels it is for, PLATFORM:CHANNEL or the channel alone."""
    kinds: tuple[Literal["direct", "group"], ...] = ()
    """Kinds of conversation it is for."""
    users: tuple[str, ...] = ()
    """Users it is for, PLATFORM:USER or the user alone."""
    roles: tuple[str, ...] = ()
    """Roles it is for; one of them suffices."""
    deny: tuple[str, ...] = ()
    """Actions that are refused."""
    allow: tuple[str, ...] = ()
    """Actions that run without a question."""
    ask: tuple[str, ...] = ()
    """Actions a person is asked about."""
    trusted_allow: tuple[str, ...] = ()
    """Actions that run without a question even after untrusted content was read."""


class PermissionsSettings(Section, frozen=True, kw_only=True):
    """Who may do what, and who decides when a person is asked."""

    live = frozenset({"profiles", "overrides"})

    default_profile: Annotated[str, Meta(min_length=1)] = "standard"
    """Profile of agents that name none: open, standard, guarded, locked, or one of yours."""
    approvers: tuple[str, ...] = ()
    """User ids that may decide beside the one who asked, e.g. telegram:4711."""
    ask_expires_seconds: Annotated[int, Meta(ge=1)] = 3600
    """Time until an unanswered question counts as refused, in seconds."""
    covered_files_max: Annotated[int, Meta(ge=0)] = 5_000
    """Most code files of an agent's folders that an approval of a command covers that may run any of them. Beyond it
    the command can only be allowed once, and only the files that it names are covered."""
    covered_bytes_max: Annotated[int, Meta(ge=0)] = 67_108_864
    """Most bytes of files that are read for one approval, with the same end."""
    profiles: dict[str, ProfileSettings] = {}
    """Your own profiles, by name."""
    overrides: tuple[OverrideSettings, ...] = ()
    """Rules for certain agents, places and people."""


class LinkedPerson(Section, frozen=True, kw_only=True):
    """Somebody whose identities are one person: what one may, all may; budgets, approvals and rules count for all."""

    identities: tuple[Annotated[str, Meta(pattern=r"^[^:\s]+:\S+$")], ...]
    """User ids with their platform, e.g. telegram:4711 and discord:1234; the first one is the person in budgets."""
    roles: tuple[str, ...] = ()
    """Roles the person has on all platforms, beside those a platform gives."""
    usd_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars the person may spend a day, in the place of budget.usd_per_user_day; 0 leaves that in force."""
    tokens_per_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens the person may spend a day, in and out, in the place of budget.tokens_per_user_day."""
    timezone: str = ""
    """IANA name of the person's time zone; what they choose with /timezone counts more."""


class AccessSettings(Section, frozen=True, kw_only=True):
    """Who is who."""

    people: dict[str, LinkedPerson] = {}
    """People with several identities, roles or ceilings of their own, by a name of your choice."""


class BudgetSettings(Section, frozen=True, kw_only=True):
    """Ceilings of what models may cost. 0 sets no ceiling."""

    usd_per_turn: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a turn."""
    usd_per_thread_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a thread and day."""
    usd_per_user_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a user and day."""
    usd_per_agent_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars an agent and day."""
    usd_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a day, all together."""
    usd_total: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars in all, ever."""
    tokens_per_turn: Annotated[int, Meta(ge=0)] = 0
    """Tokens a turn, in and out."""
    tokens_per_thread_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a thread and day, in and out."""
    tokens_per_user_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a user and day, in and out."""
    tokens_per_agent_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens an agent and day, in and out."""
    tokens_per_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a day, in and out, all together."""
    tokens_total: Annotated[int, Meta(ge=0)] = 0
    """Tokens in all, ever, in and out."""
    usd_per_stranger_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a day for somebody whom only the `*` of an allow-list lets in."""
    tokens_per_stranger_day: Annotated[int, Meta(ge=0)] = 200_000
    """Tokens a day for somebody whom only the `*` of an allow-list lets in."""
    usd_strangers_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a day for all of these people together, however many accounts they have."""
    tokens_strangers_per_day: Annotated[int, Meta(ge=0)] = 1_000_000
    """Tokens a day for all of these people together."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """What becomes of a model without a known price while a ceiling in US dollars is set."""


class WebSettings(Section, frozen=True, kw_only=True):
    """The page, the HTTP API and the platforms' webhooks."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on; anything but 127.0.0.1 is open to the network."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8420
    """Port to listen on; 0 takes a free one."""
    token: Secret = NO_SECRET
    """What a client must show; empty takes the token file in the home directory."""
    allow: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")], ...] = ()
    """People with a token of their own who are trusted, by the NAME of web:NAME; what others of them write taints."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other pages that may call the API, e.g. https://chat.example.org."""
    trusted_proxies: tuple[Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$")], ...] = ()
    """Addresses or networks of TLS proxies whose X-Forwarded-Proto counts; a proxy on this machine's loopback does."""
    public_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address under which platforms reach this server for webhooks."""
    push: bool = True
    """Whether browsers may ask for notifications of approvals and answers, which needs the extra `push`."""
    push_services: tuple[Annotated[str, Meta(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Push services of your own that are not public, e.g. https://push.example.org; any other has to be."""


class EngineSettings(Section, frozen=True, kw_only=True):
    """How work is shared out and handed over."""

    concurrency: Annotated[int, Meta(ge=1)] = 1000
    """Threads that one process advances at the same time."""
    drain_seconds: Annotated[float, Meta(ge=0)] = 30.0
    """Time running turns get at a stop, in seconds; the rest goes on at the next start."""
    heartbeat_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """PostgreSQL: pause between a worker's signs of life, in seconds."""
    stalled_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """PostgreSQL: silence after which a worker's threads go to another, in seconds."""


class AgentsSettings(Section, frozen=True, kw_only=True):
    """Who answers."""

    default_agent: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "main"
    """Agent of channels that are bound to none."""
    managers: tuple[str, ...] = ()
    """Who may make, bind, change and destroy agents and choose settings of a place, beside the owner and
    permissions.approvers: PLATFORM:USER, role:NAME, or PLATFORM:role:NAME."""


class SubagentsSettings(Section, frozen=True, kw_only=True):
    """Bounds of what agents give to subagents and to each other."""

    depth_max: Annotated[int, Meta(ge=0, le=10)] = 3
    """How deep calls may nest; 0 allows none."""
    running_max: Annotated[int, Meta(ge=1, le=100)] = 5
    """How many of a conversation's subagents are at work at the same time."""
    steps_max: Annotated[int, Meta(ge=1)] = 25
    """Model calls of one subagent; never more than turns.steps_max."""


class ToolsSettings(Section, frozen=True, kw_only=True):
    """Settings of built-in tools."""

    brave_api_key: Secret = NO_SECRET
    """Key of the Brave search API; without it web_search asks DuckDuckGo."""
    hardware: bool = False
    """Whether agents have tools for I2C and SPI devices of this machine (extra `hardware`). Profiles other than open
    still deny them."""


class LoggingSettings(Section, frozen=True, kw_only=True):
    """What the log says, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least weight of what is written."""
    json: bool = False
    """One JSON object a line instead of text."""


MCP_NAME = r"[a-z0-9][a-z0-9-]{0,23}"
"""What a server can be called; no `_`, so that `mcp_SERVER_TOOL` says which server is meant."""


class McpServerSettings(Section, frozen=True, kw_only=True):
    """A server of the Model Context Protocol, under a name of your choice (lower-case letters, digits and -). Its tools
    are called mcp_NAME_TOOL. Give a command or a url."""

    live = frozenset({"enabled", "command", "args", "env", "url", "headers"})

    enabled: bool = True
    """Whether it is used."""
    command: str = ""
    """Program that is started and spoken to over its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, Secret] = {}
    """Its environment, beside PATH, HOME, USER, LOGNAME, SHELL and TERM; it gets nothing else of Shoal's."""
    sandbox: bool = False
    """Whether it runs in bubblewrap, with [sandbox]'s network and a folder of its own, and not as a program here."""
    url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address of a server that runs already and speaks streamable HTTP; private addresses are allowed here."""
    headers: dict[str, Secret] = {}
    """HTTP headers of each request to it, such as Authorization."""
    tools: tuple[str, ...] = ()
    """The tools to take, by the server's own names; empty takes all."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=900)] = 60.0
    """Longest wait for it to start, and for each answer, in seconds."""

    @property
    def identity(self) -> str:
        """What the server is: a change of it ends approvals."""
        return self.url or shlex.join([self.command, *self.args])


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration. `home` is where it was read from; it is not a key of the file."""

    home: Path
    timezone: str = ""
    """IANA name of the time zone by which days begin and times are read and shown, such as Europe/Berlin. Empty takes
    this machine's, or UTC where several machines share a database."""
    model: ModelSettings = ModelSettings()
    providers: dict[str, ProviderSettings] = {}
    database: DatabaseSettings = DatabaseSettings()
    files: FilesSettings = FilesSettings()
    checkpoints: CheckpointsSettings = CheckpointsSettings()
    turns: TurnsSettings = TurnsSettings()
    mailbox: MailboxSettings = MailboxSettings()
    threads: ThreadsSettings = ThreadsSettings()
    context: ContextSettings = ContextSettings()
    sandbox: SandboxSettings = SandboxSettings()
    permissions: PermissionsSettings = PermissionsSettings()
    access: AccessSettings = AccessSettings()
    budget: BudgetSettings = BudgetSettings()
    platforms: PlatformsSettings = PlatformsSettings()
    web: WebSettings = WebSettings()
    engine: EngineSettings = EngineSettings()
    agents: AgentsSettings = AgentsSettings()
    subagents: SubagentsSettings = SubagentsSettings()
    tools: ToolsSettings = ToolsSettings()
    speech: SpeechSettings = SpeechSettings()
    mcp: dict[str, McpServerSettings] = {}
    logging: LoggingSettings = LoggingSettings()

    def section(self, kind: type[SectionT]) -> SectionT:
        """Return the section that a feature has in the file, by its record."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((value for value in values if isinstance(value, kind)), None) or kind()

    @property
    def zone(self) -> str:
        """The IANA name of the configured time zone, or of this machine's."""
        if self.timezone:
            return zone_named(self.timezone).key
        return "UTC" if self.database.url else local_zone()
