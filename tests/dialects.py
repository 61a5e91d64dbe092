"""Every dialect that Shoal's platforms write, by name; None is markdown as it is."""

from shoal.chat.discord.messages import DISCORD_MARKDOWN
from shoal.chat.google_chat.adapter import GOOGLE_CHAT_MARKUP
from shoal.chat.matrix.wire import MATRIX_HTML
from shoal.chat.slack.send import MRKDWN
from shoal.chat.teams.adapter import TEAMS_MARKDOWN
from shoal.chat.telegram.markup import TELEGRAM_MARKUP
from shoal.domain.markup import PLAIN, Dialect

DIALECTS: dict[str, Dialect | None] = {
    "markdown": None,
    "telegram": TELEGRAM_MARKUP,
    "slack": MRKDWN,
    "discord": DISCORD_MARKDOWN,
    "matrix": MATRIX_HTML,
    "teams": TEAMS_MARKDOWN,
    "google_chat": GOOGLE_CHAT_MARKUP,
    "plain": PLAIN,
}
