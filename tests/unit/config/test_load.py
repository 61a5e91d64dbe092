"""Loading the configuration: precedence, and complete error reports."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.configured import configured

from shoal.accounts import access_of, account_agents, accounts_of
from shoal.config import Config, ConfigError, load_config
from shoal.permissions.access import AccessRules
from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.telegram.settings import TelegramSettings


def load(home: Path, text: str = "", environ: Mapping[str, str] | None = None, **overrides: object) -> Config:
    (home / "shoal.toml").write_text(text, encoding="utf-8")
    return load_config(home, environ or {}, {key.replace("__", "."): value for key, value in overrides.items()})


def problems(home: Path, text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(home, text, environ)
    return [problem.removeprefix(f"{home / 'shoal.toml'}: ") for problem in caught.value.problems]


def test_an_empty_home_has_every_default(tmp_path: Path) -> None:
    config = load_config(tmp_path, {})
    assert (config.turns.steps_max, config.mailbox.prompts_max, config.web.port) == (25, 5, 8420)
    assert (config.permissions.default_profile, config.permissions.ask_expires_seconds) == ("standard", 3600)
    assert config.home == tmp_path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[turns]\nsteps_maxx = 3", "turns.steps_maxx is not a known key. Did you mean steps_max?"),
        ("[modle]\n", "modle is not a known key. Did you mean model?"),
        (
            "qqqq = 1",
            "qqqq is not a known key. Known keys: timezone, model, providers, database, files, checkpoints, turns,",
        ),
        ("home = '/x'", "home cannot be set in the file. Pass --home DIR or set SHOAL_HOME."),
        ("[turns]\nsteps_max = 'many'", 'turns.steps_max must be a whole number from 1 to 10000, not "many".'),
        ("[turns]\nsteps_max = 0", "turns.steps_max must be a whole number from 1 to 10000, not 0."),
        ("[turns]\nsteer = 'maybe'", 'turns.steer must be "skip" or "finish", not "maybe".'),
        ("[logging]\njson = 1", "logging.json must be true or false, not 1."),
        ("[model]\nfallback = 'x'", 'model.fallback must be a list of text values, not "x".'),
        ("model = 3", "model must be a table, not 3."),
        ("[model]\ntemperature = 2.5", "model.temperature must be a number from 0 to 2, not 2.5."),
        ("[sandbox]\nnetwork = 5", 'sandbox.network must be "off" or "on", or a list of text values, not 5.'),
        ("[sandbox]\nkind = 'jail'", "sandbox.kind must be auto, bubblewrap, docker, host, or a name from"),
        ("[providers.x]\nbase_url = 'http://h'", "providers.x.kind is missing. It must be anthropic, openai,"),
        ("[providers.x]\nkind = 'gpt'", "providers.x.kind must be anthropic, openai,"),
        ("[providers.openai]\nbase_url = 'ftp://h'", "providers.openai.base_url must be text that"),
        ("providers = []", "providers must be a table, not an empty list."),
        ("[providers.local]\n", "providers.local.model_file must be the path of a GGUF file."),
        ("[database]\nurl = 'mysql://h/d'", "database.url must be a PostgreSQL URL, postgresql://…,"),
        (
            "[context]\nevents_share = 0.9",
            "context.events_share and artifacts_share must add up to at most 1, not 1.1.",
        ),
        ("[engine]\nstalled_seconds = 1", "engine.stalled_seconds must be more than heartbeat_seconds"),
        ("[permissions]\ndefault_profile = 'lax'", "permissions.default_profile must be one of guarded, locked,"),
        (
            "[permissions.profiles.open]\n",
            "permissions.profiles.open is the name of a built-in profile. Choose another name",
        ),
        ("[permissions.profiles.p]\nextends = 'q'", "permissions.profiles.p.extends must be one of guarded, locked"),
        ("[permissions.profiles.p]\nask = ['a(']", 'permissions.profiles.p.ask has the pattern "a("'),
        (
            "[permissions.profiles.p]\nask = ['(a)\\1']",
            'permissions.profiles.p.ask has the pattern "(a)\\1": it has a back',
        ),
        (
            "[permissions.profiles]\np = { extends = 'q' }\nq = { extends = 'p' }",
            "permissions.profiles are inconsistent: permission profile 'p' extends itself",
        ),
        ("[permissions.overrides]\nkinds = ['x']", "permissions.overrides.kinds must be a list of"),
        ("[[permissions.overrides]]\nallow = ['[']", 'permissions.overrides.0.allow has the pattern "["'),
        ("[platforms.telegram]\n", "platforms.telegram.token is missing. Set it, or set enabled = false."),
        ("[platforms.telegramm]\n", "platforms.telegramm is not a known key. Did you mean telegram?"),
        ("[platforms]\ntelegram = 3", "platforms.telegram must be a table or an array of tables ([[…]]), not 3."),
        ("[platforms.slack]\nbot_token = 'x'", "platforms.slack.app_token is missing. Set it for Socket Mode"),
        ("[platforms.slack]\nbot_token = 'x'\nmode = 'http'", "platforms.slack.signing_secret is missing."),
        ("[platforms.matrix]\nhomeserver = 'http://h'\nuser = '@a:b'", "platforms.matrix.access_token is missing."),
        ("[platforms.webhook.w]\n", "platforms.webhook.w.secret is missing. Set it to a secret that both sides share."),
        *(
            (
                f'[platforms.webhook."{name}"]\nsecret = "0123456789abcdef"\n',
                f"platforms.webhook.{name} has the name of another platform. Choose a different name.",
            )
            for name in ("web", "openai", "terminal", "agent", "telegram", "slack.two")
        ),
        (
            "[platforms.extensions]\n",
            "platforms.extensions is not a known key. Known keys: telegram, discord, slack, matrix, teams, "
            "google_chat, webhook.",
        ),
    ],
)
def test_an_error_names_the_key_the_value_and_the_allowed_values(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    text = """
        [turns]
        steps_max = "x"
        stear = "skip"
        [providers.mine]
        base_url = "http://127.0.0.1"
        [context]
        events_share = 0.95
        [[platforms.discord]]
        token = 5
        [[platforms.discord]]
        token = "t"
    """
    keys = [problem.split(" ")[0] for problem in problems(tmp_path, text, {"SHOAL_WEB__PORT": "-1"})]
    assert keys[:3] == ["turns.steps_max", "turns.stear", "providers.mine.kind"]
    assert {"platforms.discord.0.token", "context.events_share", "environment"} <= set(keys)


def test_an_error_in_a_variable_names_the_variable(tmp_path: Path) -> None:
    assert problems(tmp_path, "", {"SHOAL_TURNS__STEPS_MAX": "many", "SHOAL_TERNS__X": "1"}) == [
        "environment variable SHOAL_TERNS__X: terns is not a known key. Did you mean turns?",
        "environment variable SHOAL_TURNS__STEPS_MAX: turns.steps_max must be "
        'a whole number from 1 to 10000, not "many".',
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"[model\n",
            "it is not valid TOML at line 1, column 7: expected ']' at the end of a table declaration.",
        ),
        (b"a = '\xff'", "is not UTF-8 text (byte 5). Save it as UTF-8."),
        (b"a = " + b"[" * 60_000, "it is nested too deeply."),
        (b"a = " + b"9" * 5_000, "it is not valid TOML: a number has too many digits"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "shoal.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, {})
    assert len(caught.value.problems) == 1
    assert str(tmp_path / "shoal.toml") in caught.value.problems[0]
    assert problem in caught.value.problems[0]


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        load_config(tmp_path / "home", {})


def test_variables_override_the_file_and_options_override_both(tmp_path: Path) -> None:
    text = "[web]\nport = 1\nhost = 'a'\n[turns]\nsteps_max = 3"
    environ = {"SHOAL_WEB__PORT": "2", "SHOAL_WEB__HOST": "b"}
    config = load(tmp_path, text, environ, web__port=3)
    assert (config.web.port, config.web.host, config.turns.steps_max) == (3, "b", 3)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("SHOAL_MODEL__NAME", "demo", "model.name", "demo"),
        ("SHOAL_MODEL__NAME", '"demo"', "model.name", "demo"),
        ("SHOAL_MODEL__NAME", "4.1", "model.name", "4.1"),
        ("SHOAL_MODEL__NAME", "a\nb = 1", "model.name", "a\nb = 1"),
        ("SHOAL_MODEL__TEMPERATURE", "0.5", "model.temperature", 0.5),
        ("SHOAL_LOGGING__JSON", "true", "logging.json", True),
        ("SHOAL_MODEL__FALLBACK", '["a", "b"]', "model.fallback", ("a", "b")),
        ("SHOAL_MODEL__FALLBACK", "a, b", "model.fallback", ("a", "b")),
        ("SHOAL_SANDBOX__NETWORK", '["h"]', "sandbox.network", ("h",)),
        ("SHOAL_SANDBOX__NETWORK", "on", "sandbox.network", "on"),
        ("SHOAL_PERMISSIONS__APPROVERS", "7", "permissions.approvers", ("7",)),
    ],
)
def test_a_variable_is_parsed_by_the_type_of_its_key(
    tmp_path: Path, name: str, text: str, key: str, value: object
) -> None:
    section, field = key.split(".")
    assert getattr(getattr(load(tmp_path, "", {name: text}), section), field) == value


def test_variables_without_a_section_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, "", {"SHOAL_HOME": "/x", "SHOAL_DEBUG": "1"}) == load_config(tmp_path, {})


def test_a_variable_reaches_into_providers_and_platforms(tmp_path: Path) -> None:
    environ = {
        "SHOAL_PROVIDERS__MINE__KIND": "openai",
        "SHOAL_PROVIDERS__MINE__BASE_URL": "http://127.0.0.1:9/v1",
        "SHOAL_PLATFORMS__TELEGRAM__TOKEN": "12345",
        "SHOAL_PLATFORMS__TELEGRAM__ALLOW": "1,2",
    }
    config = load(tmp_path, "[platforms.telegram]\napi_base = 'http://127.0.0.1:8'", environ)
    assert config.providers["mine"].base_url == "http://127.0.0.1:9/v1"
    (bot,) = configured(config, TelegramSettings)
    assert (bot.token.reveal(), bot.allow, bot.api_base) == ("12345", ("1", "2"), "http://127.0.0.1:8")


def test_a_variable_names_one_of_several_accounts_by_number(tmp_path: Path) -> None:
    text = "[[platforms.discord]]\ntoken = 'a'\n[[platforms.discord]]\naccount = 'b'\n"
    config = load(tmp_path, text, {"SHOAL_PLATFORMS__DISCORD__1__TOKEN": "tok"})
    assert [account.token.reveal() for account in configured(config, DiscordSettings)] == ["a", "tok"]
    for variable in ("SHOAL_PLATFORMS__DISCORD__TOKEN", "SHOAL_PLATFORMS__DISCORD__2__TOKEN"):
        (problem,) = problems(tmp_path, text + "token = 'b'", {variable: "tok"})
        assert variable in problem


def test_accounts_of_one_platform_need_distinct_names(tmp_path: Path) -> None:
    text = "[[platforms.discord]]\ntoken = 'a'\n[[platforms.discord]]\ntoken = 'b'\n"
    assert problems(tmp_path, text) == [
        'platforms.discord.1.account is "main" for two accounts. Give each account a different name.'
    ]


def test_ids_may_be_written_as_numbers(tmp_path: Path) -> None:
    config = load(tmp_path, "[platforms.telegram]\ntoken = 't'\nallow = [1, 'x']\n[permissions]\napprovers = [3]")
    assert config.platforms.of("telegram")[0].allow == ("1", "x")
    assert config.permissions.approvers == ("3",)


def test_a_disabled_platform_may_be_incomplete(tmp_path: Path) -> None:
    assert not load(tmp_path, "[platforms.teams]\nenabled = false").platforms.of("teams")[0].enabled


IRC = """
from shoal.platforms.account import ChatAccount
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.settings_platforms import AccountSettings
from shoal.platforms.record import Platform

class IrcSettings(AccountSettings, frozen=True, kw_only=True):
    server: str
    port: int = 6697
    password: Secret = NO_SECRET

class Irc(ChatAccount[IrcSettings]):
    pass

PLATFORM = Platform(title="IRC", settings=IrcSettings, adapter="config_irc:Irc")

NEITHER = 1
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "site" / "shoal_irc-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal-irc\nVersion: 1\n")
    offered = "[shoal.platforms]\nirc = config_irc:PLATFORM\nbad = config_irc:NEITHER\nweb = config_irc:PLATFORM\n"
    (record / "entry_points.txt").write_text(f"{offered}[shoal.providers]\nodd = x:Y\n")
    (tmp_path / "site" / "config_irc.py").write_text(IRC)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.mark.usefixtures("site")
def test_accounts_of_an_extension_accept_its_own_and_the_shared_keys(tmp_path: Path) -> None:
    text = """
    [platforms.irc.main]
    server = "irc.example"
    password = { env = "IRC_PASSWORD" }
    owner = "olga"
    allow = [7]
    channels = ["#harbour"]
    agent = "skipper"
    [platforms.irc.spare]
    server = "spare.example"
    enabled = false
    [providers.o]
    kind = "odd"
    """
    config = load(tmp_path, text, {"IRC_PASSWORD": "s3cret"})
    main, spare = config.platforms.of("irc")
    assert (main.owner, main.allow, main.channels, main.agent) == ("olga", ("7",), ("#harbour",), "skipper")
    assert [getattr(main, key) for key in ("server", "port")] == ["irc.example", 6697]
    assert getattr(main, "password").reveal() == "s3cret"  # noqa: B009
    assert "s3cret" not in repr(main)
    assert (spare.account, spare.enabled) == ("spare", False)
    assert list(accounts_of(config)) == ["irc"]
    assert access_of(config, "irc") == AccessRules(("olga",), ("7",), ("#harbour",))
    assert account_agents(config) == {"irc": "skipper"}
    assert config.providers["o"].kind == "odd"


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[platforms.irc]\nserver = 'x'\nprot = 1", "platforms.irc.prot is not a known key. Did you mean port?"),
        ("[platforms.irc]\nport = 'x'", 'platforms.irc.port must be a whole number, not "x".'),
        ("[platforms.irc]\nport = 1", "platforms.irc.server is missing. It must be text."),
        ("[platforms]\nirc = 1", "platforms.irc must be a table or an array of tables ([[…]]), not 1."),
        ("[platforms.bad]\nx = 1", "'bad' in shoal.platforms is not a shoal.platforms.record.Platform."),
        ("[platforms.web]\nserver = 'x'", "platforms.web has a reserved name"),
        (
            "[[platforms.irc]]\nserver = 'x'\n[[platforms.irc]]\nserver = 'y'",
            'platforms.irc.1.account is "main" for two accounts. Give each account a different name.',
        ),
    ],
)
def test_errors_in_an_extensions_account_are_reported(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)


def test_accounts_may_be_named_tables(tmp_path: Path) -> None:
    text = "[platforms.telegram.main]\ntoken = 'a'\n[platforms.telegram.work]\ntoken = 'b'"
    accounts = configured(load(tmp_path, text), TelegramSettings)
    assert [(one.account, one.token.reveal()) for one in accounts] == [("main", "a"), ("work", "b")]
    config = load(tmp_path, "[platforms.telegram]\ntoken = { env = 'T' }", {"T": "c"})
    (alone,) = configured(config, TelegramSettings)
    assert (alone.account, alone.token.reveal()) == ("main", "c")
