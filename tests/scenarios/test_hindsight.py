"""Past decisions that are repeated under other rules, and suggested rules, over the API of a running Shoal."""

from datetime import timedelta
from pathlib import Path

from shoal.kernel.clock import Clock
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.hindsight import changed_decisions, suggestions
from shoal.permissions.profiles import Profiles, compile_profile
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario

TOUCH = Reply(calls=(Call("bash", '{"command": "touch made"}'),))


async def test_a_call_allowed_three_times_is_suggested_and_a_stricter_profile_denies_it(tmp_path: Path) -> None:
    model = FakeModel(*[TOUCH, "done"] * 3)
    async with scenario(tmp_path, model, profile="standard") as world:
        for number in range(1, 4):
            await world.ada.says("go")
            await world.happens(world.ada.thread, "approval_requested", number)
            (asked,) = await world.app[Store].approvals.search(thread=world.ada.thread)
            await world.ada.decides(asked.id, allow=True)
            await world.happens(world.ada.thread, "turn_finished", number)
        store, since = world.app[Store], world.app[Clock].now() - timedelta(hours=1)
        approvals = await store.approvals.search(pending=False)
        profiles = {"main": world.app[Profiles].get("standard")}
        (rule,) = suggestions(approvals, {world.ada.thread: "main"}, profiles)
        assert (rule.allow, rule.asked, rule.shown) == (("tool:bash:touch made",), 3, "touch made")
        checks = await store.audit.checks(since)
        (one,) = [check for check in checks if check.action == "tool:bash:touch made"]
        assert (one.decision, one.count, one.thread) == ("ask", 3, world.ada.thread)
        strict = compile_profile("strict", ProfileSettings(deny=("tool:bash:touch .*",), allow=(".*",)))
        (changed,) = [one for one in changed_decisions(checks, strict) if one.action == "tool:bash:touch made"]
        assert (changed.before, changed.after, changed.rule) == ("ask", "deny", "deny tool:bash:touch .*")
        assert await store.audit.checks(since, "nobody") == []
        assert await store.audit.checks(world.app[Clock].now() + timedelta(hours=1)) == []
