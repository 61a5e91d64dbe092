"""Permission rules that the owner creates from an approval. They are stored in shoal.toml, like rules added with `shoal
permissions add`.
"""

from shoal.feature import Feature

FEATURE = Feature(name="standing_rules", attach="rules:attach")
