"""Slack adapter: receives events through Socket Mode or signed HTTP requests and posts through the Web API."""

from collections.abc import Collection, Mapping

from shoal.platforms.record import Platform, SetupQuestion
from shoal.platforms.slack.settings import SlackSettings


def _from_variables(keys: Collection[str]) -> Mapping[str, object] | None:
    if "bot_token" not in keys or len(keys) == 1:
        return None
    return {} if "app_token" in keys else {"mode": "http"}


PLATFORM = Platform(
    title="Slack",
    settings=SlackSettings,
    adapter="shoal.platforms.slack.adapter:SlackAdapter",
    variables={
        "bot_token": "SLACK_BOT_TOKEN",
        "app_token": "SLACK_APP_TOKEN",
        "signing_secret": "SLACK_SIGNING_SECRET",
    },
    from_variables=_from_variables,
    questions=(
        SetupQuestion("bot_token", "Bot token (xoxb-…, OAuth & Permissions)", "a Slack bot token"),
        SetupQuestion("app_token", "App-level token (xapp-…, Basic Information)", "a Slack app-level token"),
    ),
    package="websockets",
    secret_shapes=(
        ("a Slack bot token", r"xoxb-"),
        ("a Slack app-level token", r"xapp-"),
        ("a Slack user token", r"xox[pe]"),
    ),
)
