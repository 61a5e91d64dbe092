"""Microsoft Teams adapter: uses the Bot Framework's REST API."""

from shoal.platforms.record import Platform, SetupQuestion
from shoal.platforms.teams.settings import TeamsSettings

PLATFORM = Platform(
    title="Microsoft Teams",
    settings=TeamsSettings,
    adapter="shoal.platforms.teams.adapter:TeamsAdapter",
    questions=(
        SetupQuestion("app_id", "Microsoft App ID (Azure portal, your bot, Configuration)"),
        SetupQuestion("tenant", "App Tenant ID (same page)"),
        SetupQuestion("app_password", "Client secret: the value, not the ID (Manage Password)", "a client secret"),
    ),
    owner_question="Your object id (Microsoft Entra, Users, you)",
    package="jwt",
)
