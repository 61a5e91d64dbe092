"""The Markdown dialect of each platform, by name. None is unchanged Markdown."""

from shoal.kernel.markup import Dialect
from shoal.markdown.dialects import PLAIN
from shoal.platforms.discord.messages import DISCORD_MARKDOWN
from shoal.platforms.google_chat.adapter import GOOGLE_CHAT_MARKUP
from shoal.platforms.matrix.wire import MATRIX_HTML
from shoal.platforms.slack.send import MRKDWN
from shoal.platforms.teams.adapter import TEAMS_MARKDOWN
from shoal.platforms.telegram.markup import TELEGRAM_MARKUP

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
