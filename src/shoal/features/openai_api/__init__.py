"""OpenAI-compatible API: models, chat completions and responses. Each agent is a model."""

from shoal.feature import Feature

FEATURE = Feature(name="openai_api", attach="conversations:attach", routes="routes:routes", paths=("/v1",))
