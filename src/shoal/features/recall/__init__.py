"""Recall: search memory, notes, documents and conversations by meaning or by words."""

from shoal.feature import Feature

FEATURE = Feature(
    name="recall",
    settings={"recall": "settings:RecallSettings"},
    open="service:open_library",
    tools="tools:recall_tools",
)
