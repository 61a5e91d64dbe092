"""IRC as a platform for Shoal."""

from shoal.platforms.record import Platform, SetupQuestion
from shoal_irc.connection import IrcSettings

PLATFORM = Platform(
    title="IRC",
    settings=IrcSettings,
    adapter="shoal_irc.adapter:IrcAdapter",
    questions=(
        SetupQuestion("server", "Host of the IRC server"),
        SetupQuestion("nick", "The bot's nick", optional=True),
        SetupQuestion("password", "Password of the bot's account on the IRC network", "a password", optional=True),
    ),
)
