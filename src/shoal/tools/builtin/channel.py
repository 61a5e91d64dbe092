"""The tool `upload`: posts a file of the workspace in the thread's channel."""

import hashlib
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import NewPost
from shoal.tools.builtin.files import PathArgument
from shoal.tools.jail import jail_of
from shoal.tools.keep import keep_copy
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical

UPLOAD_BYTES_MAX = 26_214_400
"""Longest file that is posted; a platform's own limit may be lower."""


class UploadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `upload` takes."""

    path: PathArgument
    comment: Annotated[str, Meta(description="Text to post with the file.", max_length=4000)] = ""


class UploadTool(TypedTool[UploadArguments]):
    """Posts a copy of the file as it is when the call runs; what the file becomes later is not posted."""

    name: ClassVar[str] = "upload"
    description: ClassVar[str] = "Send a file to the person you talk with: post it in this conversation."

    def __init__(self) -> None:
        super().__init__(UploadArguments)

    def plan(self, arguments: UploadArguments, context: ToolContext) -> Invocation:
        """Resolve the path and look at the size."""
        jail = jail_of(context)
        place = jail.resolve(arguments.path)
        size = jail.size(place)
        if size is None:
            raise ToolError(f"{place.shown} does not exist.")
        shown = f"{self.name} {place.shown} ({size:,} bytes)\n\n{arguments.comment}".strip()

        async def work() -> ToolOutput:
            content = await in_thread(lambda: jail.read(place, UPLOAD_BYTES_MAX))
            name = PurePosixPath(place.shown).name
            kept = await in_thread(lambda: keep_copy(context.home, context.thread, name, content))
            stem = hashlib.sha256(f"{context.turn}\0{context.call_id}".encode()).hexdigest()[:26]
            await context.services.post(
                NewPost(id=stem, thread=context.chat, text=arguments.comment, kind="file", file=str(kept))
            )
            return ToolOutput(f"Posted {place.shown} ({len(content):,} bytes).")

        effect = canonical(self.name, path=place.shown, comment=arguments.comment)
        return Prepared((Action(f"tool:{self.name}:{place.shown}", runs=(place.shown,)),), shown, effect, work)
