"""Discord adapter: receives events from the gateway and posts through the REST API."""

from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.record import Platform, SetupQuestion

PLATFORM = Platform(
    title="Discord",
    settings=DiscordSettings,
    adapter="shoal.platforms.discord.adapter:DiscordAdapter",
    variables={"token": "DISCORD_TOKEN"},
    from_variables=lambda keys: {} if "token" in keys else None,
    questions=(SetupQuestion("token", "Your bot's token (Developer Portal, Bot, Reset Token)", "a Discord bot token"),),
    package="websockets",
    secret_shapes=(("a Discord bot token", r"[\w-]{23,28}\.[\w-]{6,7}\.[\w-]{27,}$"),),
)
