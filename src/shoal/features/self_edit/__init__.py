"""Self-edit: agents change their own settings, persona files, documents and skills.

The versions of these files are in the core (`agents/versions.py`), because people also change them on the page.
"""

from shoal.feature import Feature

FEATURE = Feature(name="self_edit", attach="taint:attach", tools="tools:self_edit_tools")
