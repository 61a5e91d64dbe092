"""`shoal context`: what the next request to the model carries, and what each part of it costs."""

import asyncio
from typing import TYPE_CHECKING

import click

from shoal.domain.ids import parse_thread_id
from shoal.surfaces.cli.client import find_server, path_part
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from shoal.turn.context import ContextCosts

NEW_THREAD = "web:lobby:new"
"""Stands for a conversation in which nothing was said."""


@click.group()
def context() -> None:
    """What the model gets to see."""


@context.command()
@click.argument("id", default=NEW_THREAD)
@json_option
@click.pass_obj
def show(context: CommandContext, id: str, as_json: bool) -> None:
    """Show what each part of a thread's next request takes, in bytes and tokens.

    Without ID, of the first request of a new conversation.
    """
    thread = parse_thread_id(id)

    async def ask() -> "ContextCosts":
        from shoal.turn.context import ContextCosts

        server = find_server(context)
        if server is not None:
            return await server.call("GET", f"/api/threads/{path_part(thread)}/context", into=ContextCosts)
        from shoal.actors.commands import agent_here
        from shoal.app import open_app

        config = context.config()
        context.guard()
        async with open_app(config) as app:
            agent = await agent_here(app.store, app.agents, thread)
            return await app.context.costs(thread, agent, app.models.route(agent.model), app.store)

    found = asyncio.run(ask())
    if as_json:
        print_json(found)
        return
    share = found.tokens * 100 // found.window_tokens
    print(f"{found.model} for {found.agent}: {found.tokens} of {found.window_tokens} tokens ({share} %),")
    print(f"an answer may have {found.output_tokens}.")
    print_table(("part", "bytes", "tokens"), [(one.name, one.bytes, one.tokens) for one in found.parts], "")
    if found.found_tools:
        print(f"{found.found_tools} further tools are found when they are needed.")
    if found.left_out:
        print(f"{found.left_out} older messages are left out.")
    if found.fitted:
        print("Instructions and tools are shortened: they are more than this window has room for.")
