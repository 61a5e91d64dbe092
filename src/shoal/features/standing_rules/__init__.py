"""Permission rules that the owner creates from an approval. They are stored where `shoal permissions add` stores its
rules."""

from shoal.feature import Feature

FEATURE = Feature(name="standing_rules", attach="rules:attach")
