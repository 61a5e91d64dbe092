"""The configuration as records, one class for each section. Each part of the system receives only its own section.

docs/configuration.md is generated from these defaults and descriptions. `shoal.config` reads and checks the values.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta

from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.section import URL_OR_EMPTY, Section
from shoal.kernel.settings_platforms import PlatformsSettings
from shoal.kernel.zones import local_zone, zone_named

SectionT = TypeVar("SectionT", bound=Section)


class ModelSettings(Section, frozen=True, kw_only=True):
    """The default model and its fallback models."""

    live = frozenset({"name"})

    name: str = ""
    """PROVIDER/MODEL, or a name in available_models.json. If empty, Shoal uses the first provider with a key, otherwise
    Ollama if it is running, otherwise the model "demo".
    """
    max_output_tokens: Annotated[int, Meta(ge=1)] = 4096
    """Maximum length of one response from the model, in tokens."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    """Sampling temperature. The providers' default of 1.0 is not sent, because some models reject the parameter."""
    context_tokens_max: Annotated[int, Meta(ge=0)] = 0
    """Context window to use, in tokens. 0 uses the model's known window, or 128,000 if it is unknown."""
    fallback: tuple[str, ...] = ()
    """Fallback models, tried in order when a provider is down or out of quota."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 3600.0
    """Maximum time that a person's message waits for an unavailable model, in seconds. 0 fails immediately."""


DollarsPerMillion: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000)]
Price: TypeAlias = DollarsPerMillion | dict[Literal["input", "output", "cached", "cache_write"], DollarsPerMillion]
"""US dollars per million tokens, for all tokens or by kind. A kind without a price costs the same as input."""


class ProviderSettings(Section, frozen=True, kw_only=True):
    """A service that runs models, under a name that you choose. The names anthropic, openai, gemini, openrouter,
    ollama and local imply a kind and a base URL.
    """

    live = frozenset({"kind", "base_url", "api_key", "model_file", "price", "prices"})

    kind: Annotated[str, Meta(examples=["anthropic", "openai", "openai-responses", "gemini", "local"])]
    """API protocol. openai means Chat Completions, which most services and servers offer."""
    base_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Base URL of the API, including the version. Empty uses the kind's default."""
    api_key: Secret = NO_SECRET
    """API key. Empty for servers that do not need one."""
    models: tuple[str, ...] = ()
    """Models to offer in addition to the provider's list. The first model is the provider's default."""
    headers: dict[str, Secret] = {}
    """Additional HTTP headers for each request."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Maximum pause within one response, in seconds. The limit is five times as long while the server sends
    keep-alives.
    """
    model_file: str = ""
    """Path to the GGUF file for kind local, absolute or relative to the home directory."""
    price: Price | None = None
    """Price in US dollars per million tokens: a number or { input = 0.5, output = 1.5, cached = 0.05 }. 0 means free.
    If it is not set, Shoal looks up the model in public price lists. Models of kind local and Ollama are free.
    """
    prices: dict[str, Price] = {}
    """Prices of individual models, by name: { "qwen3-32b" = { input = 0.2, output = 0.6 } }."""


class DatabaseSettings(Section, frozen=True, kw_only=True):
    """Storage for journals and queues."""

    url: Secret = NO_SECRET
    """URL of a PostgreSQL database that several machines share: postgresql://USER:PASSWORD@HOST/NAME. Empty uses SQLite
    in the home directory.
    """
    synchronous: Literal["full", "normal"] = "full"
    """SQLite only. full survives a power failure. normal is faster, but survives only a crash of the process."""
    connections_max: Annotated[int, Meta(ge=2, le=1000)] = 10
    """PostgreSQL only. Maximum number of connections per process."""
    bookkeeping_days: Annotated[float, Meta(ge=0, le=10_000)] = 30.0
    """Number of days for which finished delivery rows are stored. 0 stores them permanently."""


class FilesSettings(Section, frozen=True, kw_only=True):
    """Storage for results, message files and workspaces that several machines share."""

    url: Annotated[str, Meta(pattern=r"^$|^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/\S*)?$")] = ""
    """S3-compatible store, s3://BUCKET/PREFIX. Empty keeps all files in the home directory, which may be shared."""
    endpoint: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """URL of the store. Not needed for Amazon S3."""
    region: str = ""
    """Region of the bucket. Empty uses AWS_REGION."""
    access_key: Secret = NO_SECRET
    """Access key id. Empty uses the usual AWS variables or the machine's role."""
    secret_key: Secret = NO_SECRET
    """Secret access key."""
    workspace_sync: bool = True
    """Whether workspaces and threads' files are synchronized through the store at `url`. Set to false if they are on a
    shared volume."""


class TurnsSettings(Section, frozen=True, kw_only=True):
    """Limits for each turn."""

    steps_max: Annotated[int, Meta(ge=1, le=10_000)] = 25
    """Maximum number of model calls per turn. After that, the model answers in one last call without tools."""
    tool_errors_in_a_row_max: Annotated[int, Meta(ge=1)] = 5
    """Number of consecutive failed tool calls after which a turn stops using tools. Skipped, interrupted and denied
    calls do not count.
    """
    steer: Literal["skip", "finish"] = "skip"
    """Whether to skip or finish the remaining tool calls of a step when a message for the running turn arrives."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 3600.0
    """Maximum duration of a turn, in seconds. Time spent waiting for a person does not count."""
    model_attempts_max: Annotated[int, Meta(ge=1, le=100)] = 4
    """Maximum number of attempts per model call before a fallback model is used."""
    retry_base_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """Delay before the first retry, in seconds. The delay doubles with each retry."""
    retry_after_seconds_max: Annotated[float, Meta(gt=0)] = 60.0
    """Maximum delay that a provider can request, in seconds. A provider that requests a longer delay counts as down."""
    default_response: Annotated[str, Meta(min_length=1)] = (
        "I have nothing to add. Tell me if you expected something else."
    )
    """Answer to post if the model returns nothing."""


class MailboxSettings(Section, frozen=True, kw_only=True):
    """The queue of messages that wait in a thread."""

    prompts_max: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Maximum number of turns that can wait in one thread. Further messages are answered with "busy". Consecutive
    messages from one person count as one turn.
    """
    pause_seconds: Annotated[float, Meta(ge=0, le=60)] = 1.5
    """Seconds to wait for further messages from the same person. 0 answers each message separately."""
    idle_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds of inactivity after which a thread is removed from memory."""


class ThreadsSettings(Section, frozen=True, kw_only=True):
    """Titles of conversations."""

    live = frozenset({"titles"})

    titles: Literal["auto", "words", "model"] = "auto"
    """Title of a new thread: its first words, or a title that a model suggests after the first turn. `auto` uses the
    model only if that is known to cost less than 0.05 cents.
    """
    title_model: str = ""
    """Model that suggests titles. Empty uses the agent's model."""


class ContextSettings(Section, frozen=True, kw_only=True):
    """The parts of the conversation and the files that the model sees."""

    reserve_tokens: Annotated[int, Meta(ge=0)] = 16_384
    """Number of tokens reserved for the answer and for compaction."""
    keep_recent_tokens: Annotated[int, Meta(ge=0)] = 20_000
    """Number of tokens at the end of the conversation that compaction keeps verbatim."""
    window_hours: Annotated[float, Meta(ge=0)] = 24.0
    """Maximum age of turns in the context, in hours. 0 means no limit."""
    events_share: Annotated[float, Meta(gt=0, le=1)] = 0.7
    """Maximum share of the model's input that the conversation uses."""
    artifacts_share: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Maximum share of the model's input that excerpts of stored results use."""
    artifact_chars_min: Annotated[int, Meta(ge=200)] = 2000
    """Number of characters above which a tool result is stored and the model sees only an excerpt."""
    artifact_excerpt_chars: Annotated[int, Meta(ge=200, le=100_000)] = 2000
    """Length of the excerpt of a stored result, in characters. The excerpt contains the beginning and the end of the
    result.
    """
    artifact_days: Annotated[float, Meta(ge=0, le=10_000)] = 30.0
    """Number of days for which tool results are stored. 0 stores them permanently."""
    backfill_messages_max: Annotated[int, Meta(ge=0, le=1000)] = 50
    """Maximum number of missed platform messages to read before a turn. 0 turns this off."""
    backfill_hours: Annotated[float, Meta(gt=0)] = 24.0
    """Maximum age of missed messages to read, in hours."""
    attachment_bytes_max: Annotated[int, Meta(ge=1024)] = 26_214_400
    """Maximum size of an attachment to download, in bytes."""
    attachment_image_bytes_max: Annotated[int, Meta(ge=1024)] = 3_000_000
    """Maximum size of an image sent to the model, in bytes. Larger images are scaled down. Values above 3 MB have no
    effect.
    """
    attachment_wait_seconds: Annotated[float, Meta(ge=0, le=600)] = 20.0
    """Maximum time that a turn waits for its attachments, in seconds. The remaining attachments are downloaded in the
    background.
    """
    tokenizer: Literal["estimate", "exact"] = "estimate"
    """How tokens are counted before a request: estimated from the number of bytes, or counted exactly with OpenAI's
    vocabulary (extra `tokens`).
    """
    daily_notes_days: Annotated[int, Meta(ge=0, le=366)] = 3
    """Number of days whose daily notes are included in the prompt."""


SANDBOX_KINDS = ("auto", "bubblewrap", "docker", "host")
"""Names of the built-in sandboxes."""


class SandboxSettings(Section, frozen=True, kw_only=True):
    """Sandbox, limits and network access of commands."""

    kind: Annotated[str, Meta(examples=["auto", "bubblewrap", "docker", "host"])] = "auto"
    """Kind of sandbox. auto uses bubblewrap if it is available. Otherwise, Shoal asks before commands that may change
    something. Extensions can add other kinds.
    """
    network: Literal["off", "on"] | tuple[str, ...] = "off"
    """Network access of commands, through a proxy: off for no access, on for public addresses, or a list of the allowed
    hosts.
    """
    ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = (80, 443)
    """Ports that commands can reach at public addresses with network = "on"."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Default time limit of a command, in seconds."""
    output_bytes_max: Annotated[int, Meta(ge=1024)] = 10_485_760
    """Maximum size of each output stream of a command, in bytes."""
    memory_bytes_max: Annotated[int, Meta(ge=0)] = 2_147_483_648
    """Maximum memory of a command, in bytes. 0 means no limit."""
    processes_max: Annotated[int, Meta(ge=0)] = 256
    """Maximum number of concurrent processes per command. 0 means no limit."""
    workspace_bytes_max: Annotated[int, Meta(ge=0)] = 2_147_483_648
    """Maximum size of an agent's workspace and of a thread's /scratch, in bytes. 0 means no limit."""
    workspace_files_max: Annotated[int, Meta(ge=0)] = 200_000
    """Maximum number of files and folders in an agent's workspace and in a thread's /scratch. 0 means no limit."""
    disk_free_bytes_min: Annotated[int, Meta(ge=0)] = 536_870_912
    """Minimum free disk space that commands must leave, in bytes. 0 means no limit."""
    image: str = ""
    """Docker only. Image for new containers."""
    container: str = ""
    """Docker only. Running container to use instead of new ones."""


class ProfileSettings(Section, frozen=True, kw_only=True):
    """Rules for an agent's actions. Each rule is a regular expression that must match the complete action.

    An action that matches deny is denied. Otherwise, an action that matches allow runs, and an action that matches
    ask needs approval. All other actions are decided by their effect if effects is true, and are denied if it is
    false.
    """

    extends: str = ""
    """Profile whose rules are inherited."""
    deny: tuple[str, ...] = ()
    """Actions that are denied."""
    allow: tuple[str, ...] = ()
    """Actions that run without approval."""
    ask: tuple[str, ...] = ()
    """Actions that need approval."""
    trusted_allow: tuple[str, ...] = ()
    """Actions that run without approval even in a tainted turn."""
    effects: bool = False
    """Whether the effect of an action decides if no rule matches: reads and undoable changes run, and all other actions
    need approval.
    """
    stages: bool = False
    """Whether calls whose result the agent does not need, such as messages to other channels, are approved together at
    the end of the turn. Other calls are approved before the turn continues."""


class OverrideSettings(Section, frozen=True, kw_only=True):
    """Additional rules that apply if every selector matches. An empty selector always matches. Later overrides
    take precedence, but cannot remove a deny rule.
    """

    agents: tuple[str, ...] = ()
    """Names of agents that the rules apply to."""
    platforms: tuple[str, ...] = ()
    """Platforms that the rules apply to."""
    channels: tuple[str, ...] = ()
    """Channels that the rules apply to: PLATFORM:CHANNEL, or only the channel."""
    kinds: tuple[Literal["direct", "group"], ...] = ()
    """Kinds of conversation that the rules apply to."""
    users: tuple[str, ...] = ()
    """Users that the rules apply to: PLATFORM:USER, or only the user."""
    roles: tuple[str, ...] = ()
    """Roles that the rules apply to. A person needs only one of them."""
    deny: tuple[str, ...] = ()
    """Actions that are denied."""
    allow: tuple[str, ...] = ()
    """Actions that run without approval."""
    ask: tuple[str, ...] = ()
    """Actions that need approval."""
    trusted_allow: tuple[str, ...] = ()
    """Actions that run without approval even in a tainted turn."""


class PermissionsSettings(Section, frozen=True, kw_only=True):
    """Permissions and approvals."""

    live = frozenset({"profiles", "overrides"})

    default_profile: Annotated[str, Meta(min_length=1)] = "standard"
    """Profile for agents that do not name one: open, standard, guarded, locked, or a profile that you define."""
    approvers: tuple[str, ...] = ()
    """Ids of users who may decide approvals in addition to the person who asked, such as telegram:4711."""
    ask_expires_seconds: Annotated[int, Meta(ge=1)] = 3600
    """Seconds after which an undecided approval expires."""
    covered_files_max: Annotated[int, Meta(ge=0)] = 5_000
    """Maximum number of code files that an approval covers if the command may run any of them. With more files, the
    command can only be allowed once, and the approval covers only the files that the command names.
    """
    covered_bytes_max: Annotated[int, Meta(ge=0)] = 67_108_864
    """Maximum number of bytes read from files for one approval. With more bytes, the command can only be allowed once,
    and the approval covers only the files that the command names.
    """
    profiles: dict[str, ProfileSettings] = {}
    """Your own profiles, by name."""
    overrides: tuple[OverrideSettings, ...] = ()
    """Rules for specific agents, conversations and people."""


class LinkedPerson(Section, frozen=True, kw_only=True):
    """A person with several identities. Permissions, budgets and approvals treat all identities as one person."""

    identities: tuple[Annotated[str, Meta(pattern=r"^[^:\s]+:\S+$")], ...]
    """User ids with their platform, such as telegram:4711 and discord:1234. The first id identifies the person in
    budgets.
    """
    roles: tuple[str, ...] = ()
    """Roles on all platforms, in addition to the roles that a platform assigns."""
    usd_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """Limit in US dollars per day, instead of budget.usd_per_user_day. 0 keeps that limit."""
    tokens_per_day: Annotated[int, Meta(ge=0)] = 0
    """Limit in tokens per day, input and output, instead of budget.tokens_per_user_day. 0 keeps that limit."""
    timezone: str = ""
    """IANA name of the person's time zone. The person can override it with /timezone."""


class AccessSettings(Section, frozen=True, kw_only=True):
    """People and their linked identities."""

    people: dict[str, LinkedPerson] = {}
    """People with several identities, roles or personal budgets, by a name that you choose."""


class BudgetSettings(Section, frozen=True, kw_only=True):
    """Budget limits for model calls. 0 means no limit."""

    usd_per_turn: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per turn."""
    usd_per_thread_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per thread per day."""
    usd_per_user_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per user per day."""
    usd_per_agent_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per agent per day."""
    usd_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per day in total."""
    usd_total: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars in total. Never resets."""
    tokens_per_turn: Annotated[int, Meta(ge=0)] = 0
    """Tokens per turn, input and output."""
    tokens_per_thread_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens per thread per day, input and output."""
    tokens_per_user_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens per user per day, input and output."""
    tokens_per_agent_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens per agent per day, input and output."""
    tokens_per_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens per day in total, input and output."""
    tokens_total: Annotated[int, Meta(ge=0)] = 0
    """Tokens in total, input and output. Never resets."""
    usd_per_stranger_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per day for each person admitted only by `*` in an allow-list."""
    tokens_per_stranger_day: Annotated[int, Meta(ge=0)] = 200_000
    """Tokens per day for each person admitted only by `*` in an allow-list."""
    usd_strangers_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars per day in total for people admitted only by `*` in an allow-list."""
    tokens_strangers_per_day: Annotated[int, Meta(ge=0)] = 1_000_000
    """Tokens per day in total for people admitted only by `*` in an allow-list."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """Whether to refuse or allow calls to models without a known price while a limit in US dollars is set."""


class WebSettings(Section, frozen=True, kw_only=True):
    """The page, the HTTP API and the webhooks of platforms."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on. Any address other than 127.0.0.1 is reachable from the network."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8420
    """Port to listen on. 0 selects a free port."""
    token: Secret = NO_SECRET
    """Access token for clients. Empty uses the token file in the home directory."""
    allow: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")], ...] = ()
    """Trusted people with their own tokens. Each entry is the NAME in web:NAME. Messages from other token holders taint
    a turn.
    """
    allowed_origins: tuple[str, ...] = ()
    """Origins of other pages that may call the API, such as https://chat.example.org."""
    trusted_proxies: tuple[Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$")], ...] = ()
    """Addresses or networks of TLS proxies whose X-Forwarded-Proto header is trusted. Proxies on loopback addresses are
    always trusted.
    """
    public_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Public URL of this server, for platform webhooks."""
    push: bool = True
    """Whether browsers can subscribe to notifications of approvals and answers (extra `push`)."""
    push_services: tuple[Annotated[str, Meta(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Your own push services on private addresses, such as https://push.example.org. All other push services must be
    public.
    """


class EngineSettings(Section, frozen=True, kw_only=True):
    """Distribution of threads to workers."""

    concurrency: Annotated[int, Meta(ge=1)] = 1000
    """Maximum number of concurrent threads per process."""
    drain_seconds: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds that running turns have to finish at shutdown. Unfinished turns continue at the next start."""
    heartbeat_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """PostgreSQL only. Seconds between a worker's heartbeats."""
    stalled_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """PostgreSQL only. Seconds without a heartbeat after which another worker takes over a worker's threads."""


class AgentsSettings(Section, frozen=True, kw_only=True):
    """Defaults for agents, and the people who may manage them."""

    default_agent: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "main"
    """Agent for channels without a binding."""
    managers: tuple[str, ...] = ()
    """People who may create, bind, change and delete agents and choose a conversation's settings, in addition to the
    owner and permissions.approvers: PLATFORM:USER, role:NAME, or PLATFORM:role:NAME."""


class ToolsSettings(Section, frozen=True, kw_only=True):
    """Settings for built-in tools."""

    brave_api_key: Secret = NO_SECRET
    """Key of the Brave search API. Without it, web_search uses DuckDuckGo."""
    hardware: bool = False
    """Whether agents have tools for the I2C and SPI devices on this machine (extra `hardware`). Only the open profile
    allows them.
    """


class LoggingSettings(Section, frozen=True, kw_only=True):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum log level."""
    json: bool = False
    """Whether to write one JSON object per line instead of text."""


class Config(Section, frozen=True, kw_only=True):
    """The complete configuration. `home` is the home directory. It is not a key in the file."""

    home: Path
    timezone: str = ""
    """IANA name of the time zone for days and times, such as Europe/Berlin. Empty uses this machine's zone, or UTC if
    several machines share a database."""
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
    tools: ToolsSettings = ToolsSettings()
    logging: LoggingSettings = LoggingSettings()

    def section(self, kind: type[SectionT]) -> SectionT:
        """Return the section of this type. If the configuration has none, return its defaults."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((value for value in values if isinstance(value, kind)), None) or kind()

    @property
    def zone(self) -> str:
        """IANA name of the configured time zone. Defaults to this machine's zone, or to UTC with a database URL."""
        if self.timezone:
            return zone_named(self.timezone).key
        return "UTC" if self.database.url else local_zone()
