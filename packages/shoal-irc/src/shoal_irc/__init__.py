"""IRC as a platform of Shoal."""

from shoal.platforms.record import Platform
from shoal_irc.connection import IrcSettings

PLATFORM = Platform(title="IRC", settings=IrcSettings, adapter="shoal_irc.adapter:IrcAdapter")
