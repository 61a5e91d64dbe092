"""Rules that the owner makes on the card that asks: they are written where `shoal permissions add` writes."""

from shoal.feature import Feature

FEATURE = Feature(name="standing_rules", attach="rules:attach")
