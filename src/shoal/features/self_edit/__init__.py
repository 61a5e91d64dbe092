"""Self-edit: agents change their own settings, persona files, documents and skills.

The core stores the versions of these files (`agents/versions.py`), because people also edit them on the page.
"""

from shoal.feature import Feature

FEATURE = Feature(name="self_edit", attach="taint:attach", tools="tools:self_edit_tools")
