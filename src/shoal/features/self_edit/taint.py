"""Taint of files that agents edit. Untrusted text in a file may remain there after an edit."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from shoal.agents.folder import FILE
from shoal.kernel.permissions import Action
from shoal.kernel.ports import ToolContext
from shoal.tools.prompt_files import PromptFiles, RetainedText

if TYPE_CHECKING:
    from shoal.services import Services


def attach(services: "Services") -> None:
    services[PromptFiles].keeps |= {"document": retained_documents, "settings": retained_settings}


def retained_documents(actions: Collection[Action], context: ToolContext) -> RetainedText:
    """Return the documents that a call edits. Their old text may remain."""
    return RetainedText([context.agent.home / "docs" / action.detail for action in actions])


def retained_settings(actions: Collection[Action], context: ToolContext) -> RetainedText:
    """Return the agent's settings file. A call changes only one key, so the other text remains."""
    return RetainedText([context.agent.home / FILE])
