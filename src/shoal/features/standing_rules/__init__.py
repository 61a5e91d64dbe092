"""Rules that the owner makes from an approval card. They are written to the same place as by `shoal permissions
add`."""

from shoal.feature import Feature

FEATURE = Feature(name="standing_rules", attach="rules:attach")
