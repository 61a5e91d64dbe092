"""Web Push: notify browsers and phones about approvals and replies."""

from shoal.feature import Feature

FEATURE = Feature(name="push", attach="service:attach", routes="routes:routes", paths=("/api/push",))
