"""The configuration as records, a section a class: each part of the system is given the section that is its own.

Each key's default and description are what docs/configuration.md shows; `shoal.config` reads and checks them.
"""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.domain.secret import NO_SECRET, Secret

URL = r"^https?://\S+$"
URL_OR_EMPTY = r"^$|^https?://\S+$"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """The model that answers where an agent names none."""

    name: str = ""
    """PROVIDER/MODEL, or a bare model name looked up in available_models.json; empty takes the first provider with a
    key, else a running Ollama, else "demo"."""
    max_output_tokens: Annotated[int, Meta(ge=1)] = 4096
    """Longest answer of one model call, in tokens."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    """How freely the model chooses its words; at 1.0 nothing is sent, since that is what providers take by themselves
    and some models refuse the field."""
    context_tokens_max: Annotated[int, Meta(ge=0)] = 0
    """Window to use, in tokens; 0 takes what the catalogue knows of the model."""
    fallback: tuple[str, ...] = ()
    """Further models, tried in order when a provider is down or out of quota."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 3600.0
    """How long a person's message waits for a model that is down, busy or out of reach, in seconds; 0 fails at once."""


class ProviderSettings(Section, frozen=True, kw_only=True):
    """A service that runs models, under a name of your choice. The names anthropic, openai, gemini, openrouter, ollama
    and local bring their kind and address along."""

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
    """Longest silence within one answer, in seconds."""
    model_file: str = ""
    """For kind local: the GGUF file, absolute or below the home directory."""


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

    url: Annotated[str, Meta(pattern=r"^$|^s3://[^/\s]+(/\S*)?$")] = ""
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


class BackupSettings(Section, frozen=True, kw_only=True):
    """Backups on schedule, of all that `shoal backup` writes; each is checked after it was made."""

    to: Annotated[str, Meta(pattern=r"^$|^s3://[^/\s]+(/\S*)?$|^(?!s3:).+$")] = ""
    """Where they are kept: a directory (from the home directory on), or s3://BUCKET/PREFIX in the store whose endpoint
    and keys [files] has; empty makes none."""
    every_hours: Annotated[float, Meta(ge=0, le=8_784)] = 24.0
    """Time between two, in hours; 0 makes them only when asked."""
    keep: Annotated[int, Meta(ge=1, le=10_000)] = 7
    """How many are kept; older ones are deleted once a newer one was checked."""


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
    """Prompts that may wait in one thread; more are answered with "busy"."""
    idle_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Quiet time after which a thread's agent is dropped from memory, in seconds."""


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
    attachment_image_bytes_max: Annotated[int, Meta(ge=1024)] = 5_242_880
    """Largest image that is shown to the model, in bytes; a larger one is kept as a file."""
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
    """Whether commands reach the network; a list allows these hosts only."""
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
    else what matches allow runs, else what matches ask is asked, and all the rest is refused."""

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
    """Somebody whose identities on several platforms are one person: what one of them may, all may; a budget, an
    approval and a rule for one counts for all."""

    identities: tuple[Annotated[str, Meta(pattern=r"^[^:\s]+:\S+$")], ...]
    """User ids with their platform, e.g. telegram:4711 and discord:1234; the first one is the person in budgets."""
    roles: tuple[str, ...] = ()
    """Roles the person has on all platforms, beside those a platform gives."""


class AccessSettings(Section, frozen=True, kw_only=True):
    """Who is who."""

    people: dict[str, LinkedPerson] = {}
    """People with more than one identity, by a name of your choice."""


class BudgetSettings(Section, frozen=True, kw_only=True):
    """Ceilings of what models may cost. 0 sets no ceiling."""

    usd_per_turn: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a turn."""
    usd_per_thread_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a thread and day (UTC)."""
    usd_per_user_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a user and day (UTC)."""
    usd_per_agent_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars an agent and day (UTC)."""
    usd_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars a day (UTC), all together."""
    usd_total: Annotated[float, Meta(ge=0)] = 0.0
    """US dollars in all, ever."""
    tokens_per_turn: Annotated[int, Meta(ge=0)] = 0
    """Tokens a turn, in and out."""
    tokens_per_thread_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a thread and day (UTC), in and out."""
    tokens_per_user_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a user and day (UTC), in and out."""
    tokens_per_agent_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens an agent and day (UTC), in and out."""
    tokens_per_day: Annotated[int, Meta(ge=0)] = 0
    """Tokens a day (UTC), in and out, all together."""
    tokens_total: Annotated[int, Meta(ge=0)] = 0
    """Tokens in all, ever, in and out."""
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
    public_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address under which platforms reach this server for webhooks."""


class HookSettings(Section, frozen=True, kw_only=True):
    """Calls to POST /hooks/NAME that start a turn, in a thread or in a new one of a channel."""

    secret: Secret = NO_SECRET
    """What callers prove that they know, at least 16 characters."""
    template: str = ""
    """What the agent is told; {{ a.b }} is a value of the JSON body, {{ body }} all of it. Empty is the body alone."""
    thread: str = ""
    """Thread it goes into, PLATFORM:CHANNEL:THREAD."""
    channel: str = ""
    """Or the channel in which each call opens a thread, PLATFORM:CHANNEL."""
    agent: str = ""
    """Who answers; empty is the thread's or channel's agent."""
    repeat_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 43_200.0
    """After how many seconds the same body, sent again with a bearer secret, is a new call; 0 makes each a new one.
    Signed calls are known by what was signed."""


class TriggersSettings(Section, frozen=True, kw_only=True):
    """What starts turns by itself."""

    catch_up_seconds: Annotated[int, Meta(ge=0)] = 3600
    """How late a one-time trigger may still run after downtime, in seconds."""
    outage_seconds: Annotated[float, Meta(ge=0)] = 86_400.0
    """How long a trigger's turn waits for a model that is down, busy or out of reach, in seconds; 0 fails at once."""
    heartbeat_minutes: Annotated[float, Meta(ge=0)] = 0.0
    """Time between looks at HEARTBEAT.md, in minutes; 0 is off."""
    webhooks: dict[str, HookSettings] = {}
    """Webhooks by name."""


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
    """Whether there are tools for I2C and SPI devices of this machine; profiles other than open deny them even then."""


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

    enabled: bool = True
    """Whether it is used."""
    command: str = ""
    """Program that is started and spoken to over its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, Secret] = {}
    """Its environment, beside PATH, HOME, USER, LOGNAME, SHELL and TERM; it gets nothing else of Shoal's."""
    sandbox: bool = False
    """Whether it runs in bubblewrap, with the network of [sandbox] and a folder of its own, instead of as a program of
    this machine."""
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


class AccountSettings(Section, frozen=True, kw_only=True):
    """What every platform has. One account is a table [platforms.NAME]; several are [[platforms.NAME]], each with its
    own `account`."""

    enabled: bool = True
    """False leaves this account out."""
    account: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "main"
    """Name of this account where there are several."""
    owner: str = ""
    """User id of the owner, who may always speak and confirms pairing codes."""
    allow: tuple[str, ...] = ()
    """User ids that may speak; ["*"] is everybody; without any only the owner and people who were paired."""
    channels: tuple[str, ...] = ()
    """Channels to listen in; without any all it is a member of."""
    agent: str = ""
    """Agent that answers here; empty takes agents.default_agent."""


class TelegramSettings(AccountSettings, frozen=True, kw_only=True):
    """A Telegram bot."""

    token: Secret = NO_SECRET
    """Token from BotFather."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://api.telegram.org"
    """Address of the Bot API."""
    file_base: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address files are fetched from; empty is api_base with /file."""
    mode: Literal["polling", "webhook"] = "polling"
    """How updates arrive; webhook needs web.public_url."""
    webhook_secret: Secret = NO_SECRET
    """What Telegram must show in its secret header."""


class DiscordServerSettings(Section, frozen=True, kw_only=True):
    """What differs in one Discord server; empty takes the account's."""

    threading: Literal["", "native", "reply", "channel"] = ""
    """What is a thread there."""
    agent: str = ""
    """Agent that answers there."""


class DiscordSettings(AccountSettings, frozen=True, kw_only=True):
    """A Discord bot."""

    token: Secret = NO_SECRET
    """The bot's token."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://discord.com/api/v10"
    """Address of the REST API, version part included."""
    gateway_url: Annotated[str, Meta(pattern=r"^$|^wss?://\S+$")] = ""
    """Address of the gateway; empty asks the API."""
    threading: Literal["native", "reply", "channel"] = "native"
    """What is a thread: a Discord thread, a chain of replies, or the whole channel."""
    servers: dict[str, DiscordServerSettings] = {}
    """What differs in single servers, by their ids."""

    def threading_in(self, server: str) -> Literal["native", "reply", "channel"]:
        """What is a thread in a server."""
        return self.servers.get(server, DiscordServerSettings()).threading or self.threading

    @property
    def opens_threads(self) -> bool:
        """Whether every conversation has a Discord thread of its own, and with it a rate limit of its own."""
        return self.threading == "native" and all(one.threading in ("", "native") for one in self.servers.values())

    def agent_in(self, server: str) -> str:
        """Who answers in a server."""
        return self.servers.get(server, DiscordServerSettings()).agent or self.agent


class SlackSettings(AccountSettings, frozen=True, kw_only=True):
    """A Slack app in one workspace."""

    bot_token: Secret = NO_SECRET
    """Bot token, xoxb-…."""
    app_token: Secret = NO_SECRET
    """App-level token, xapp-…, for Socket Mode."""
    signing_secret: Secret = NO_SECRET
    """What requests are signed with, for mode http."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://slack.com/api/"
    """Address of the Web API."""
    mode: Literal["socket", "http"] = "socket"
    """How events arrive."""


class MatrixSettings(AccountSettings, frozen=True, kw_only=True):
    """A Matrix account; it needs an access token or a password."""

    homeserver: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Address of the homeserver."""
    user: str = ""
    """Full user id, @NAME:SERVER."""
    access_token: Secret = NO_SECRET
    """Access token of a device."""
    password: Secret = NO_SECRET
    """Password, where there is no access token."""


class TeamsSettings(AccountSettings, frozen=True, kw_only=True):
    """A Microsoft Teams bot."""

    app_id: str = ""
    """The bot's application id."""
    app_password: Secret = NO_SECRET
    """The application's client secret."""
    tenant: str = ""
    """Tenant of a single-tenant bot; empty is the Bot Framework's own."""
    openid_metadata_url: Annotated[str, Meta(pattern=URL)] = (
        "https://login.botframework.com/v1/.well-known/openidconfiguration"
    )
    """Where the keys that sign activities are described."""
    login_url: Annotated[str, Meta(pattern=URL)] = "https://login.microsoftonline.com"
    """Where access tokens come from."""
    service_url: Annotated[str, Meta(pattern=URL)] = "https://smba.trafficmanager.net/teams/"
    """Where posts go to in conversations that nobody has written in yet."""
    service_hosts: tuple[str, ...] = (
        "smba.trafficmanager.net",
        "smba.infra.gcc.teams.microsoft.com",
        "smba.infra.gov.teams.microsoft.us",
        "smba.infra.dod.teams.microsoft.us",
    )
    """Hosts, with their port unless it is the usual one, that activities may name as their service and that are shown
    our token; service_url's is one too."""
    emulator: bool = False
    """True also takes unsigned activities whose service is on this machine, as Microsoft's playground sends them; never
    on a server that others reach."""


class GoogleChatSettings(AccountSettings, frozen=True, kw_only=True):
    """A Google Chat app."""

    audience: str = ""
    """Audience of the events' tokens: the project number or the endpoint's address."""
    service_account_file: str = ""
    """JSON key file of the service account, absolute or below the home directory."""
    api_base: Annotated[str, Meta(pattern=URL)] = "https://chat.googleapis.com"
    """Address of the Chat API."""
    certs_url: Annotated[str, Meta(pattern=URL)] = (
        "https://www.googleapis.com/service_accounts/v1/metadata/x509/chat@system.gserviceaccount.com"
    )
    """Where the certificates that sign events are."""
    oidc_certs_url: Annotated[str, Meta(pattern=URL)] = "https://www.googleapis.com/oauth2/v3/certs"
    """Where the keys are that sign events for an endpoint's address, and Pub/Sub's pushes."""
    push_account: str = ""
    """E-mail address of the service account that Pub/Sub pushes as; without one no pushes are taken."""
    subscription: Annotated[str, Meta(pattern=r"^$|^projects/[^/\s]+/subscriptions/[^/\s]+$")] = ""
    """Pub/Sub subscription to pull events from, projects/NAME/subscriptions/NAME, where Google cannot call."""
    pubsub_base: Annotated[str, Meta(pattern=URL)] = "https://pubsub.googleapis.com"
    """Address of the Pub/Sub API."""
    read_history: bool = False
    """True where an administrator has let the app read messages (chat.app.messages.readonly)."""


class WebhookSettings(AccountSettings, frozen=True, kw_only=True):
    """A chat of your own that sends and takes signed JSON; its name is the platform's."""

    secret: Secret = NO_SECRET
    """What both sides sign with."""
    post_url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """Where answers are posted to."""


class ExtensionPlatform(msgspec.Struct, frozen=True):
    """The settings of a platform that an installed extension brings; it reads them itself."""

    name: str
    settings: msgspec.Raw


class PlatformsSettings(Section, frozen=True, kw_only=True):
    """The chat platforms that are configured, each with its accounts.

    `plugins` is not a key: it holds the tables of platforms that extensions bring.
    """

    telegram: tuple[TelegramSettings, ...] = ()
    discord: tuple[DiscordSettings, ...] = ()
    slack: tuple[SlackSettings, ...] = ()
    matrix: tuple[MatrixSettings, ...] = ()
    teams: tuple[TeamsSettings, ...] = ()
    google_chat: tuple[GoogleChatSettings, ...] = ()
    webhook: dict[str, WebhookSettings] = {}
    plugins: tuple[ExtensionPlatform, ...] = ()


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration. `home` is where it was read from; it is not a key of the file."""

    home: Path
    model: ModelSettings = ModelSettings()
    providers: dict[str, ProviderSettings] = {}
    database: DatabaseSettings = DatabaseSettings()
    files: FilesSettings = FilesSettings()
    backup: BackupSettings = BackupSettings()
    turns: TurnsSettings = TurnsSettings()
    mailbox: MailboxSettings = MailboxSettings()
    context: ContextSettings = ContextSettings()
    sandbox: SandboxSettings = SandboxSettings()
    permissions: PermissionsSettings = PermissionsSettings()
    access: AccessSettings = AccessSettings()
    budget: BudgetSettings = BudgetSettings()
    platforms: PlatformsSettings = PlatformsSettings()
    web: WebSettings = WebSettings()
    triggers: TriggersSettings = TriggersSettings()
    engine: EngineSettings = EngineSettings()
    agents: AgentsSettings = AgentsSettings()
    subagents: SubagentsSettings = SubagentsSettings()
    tools: ToolsSettings = ToolsSettings()
    mcp: dict[str, McpServerSettings] = {}
    logging: LoggingSettings = LoggingSettings()
