"""Environment variables of the user who runs the tests. They must not affect the tests."""

VARIABLES = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY",
    "OPENROUTER_API_KEY", "BRAVE_API_KEY", "TELEGRAM_BOT_TOKEN", "DISCORD_TOKEN", "DATABASE_URL", "SHOAL_HOME",
)  # fmt: skip
