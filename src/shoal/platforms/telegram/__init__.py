"""Telegram adapter: receives updates by long polling or webhook and posts through the Bot API."""

from shoal.platforms.record import Platform, SetupQuestion
from shoal.platforms.telegram.settings import TelegramSettings

PLATFORM = Platform(
    title="Telegram",
    settings=TelegramSettings,
    adapter="shoal.platforms.telegram.adapter:TelegramAdapter",
    variables={"token": "TELEGRAM_BOT_TOKEN"},
    from_variables=lambda keys: {} if "token" in keys else None,
    questions=(SetupQuestion("token", "Your bot's token, from @BotFather (/newbot)", "a Telegram bot token"),),
    secret_shapes=(("a Telegram bot token", r"\d{5,}:[\w-]{20,}$"),),
)
