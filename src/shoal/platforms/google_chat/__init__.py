"""Google Chat adapter: receives events over HTTP or Pub/Sub and posts through the REST API."""

from shoal.platforms.google_chat.settings import GoogleChatSettings
from shoal.platforms.record import Platform, SetupQuestion

PLATFORM = Platform(
    title="Google Chat",
    settings=GoogleChatSettings,
    adapter="shoal.platforms.google_chat.adapter:GoogleChatAdapter",
    questions=(
        SetupQuestion("service_account_file", "Path to the app's service account key file (JSON)"),
        SetupQuestion("audience", "Authentication audience (Google Chat API, Configuration): the project's number"),
        SetupQuestion(
            "subscription",
            "Pub/Sub subscription, projects/…/subscriptions/… (enter - if Google calls this server)",
            optional=True,
        ),
    ),
    owner_question="Your user id, the number after users/",
    fetches_with="subscription",
    package="jwt",
)
