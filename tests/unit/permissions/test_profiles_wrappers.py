"""Under `guarded`, a wrapper never runs a command that the profile denies on its own.

Each line of `wrappers.txt` is a command that runs or may run another one. `{}` is replaced by the words of the other
command, and `{q}` by the other command as a single word.
"""

import shlex
from pathlib import Path

import pytest

from shoal.kernel.permissions import Action
from shoal.permissions.actions import shell_actions
from shoal.permissions.profiles import Profiles, decide_all
from tests.known_tools import TRAITS

WRAPPERS = Path(__file__).with_name("wrappers.txt").read_text(encoding="utf-8").splitlines()
HARMFUL = ("git push origin main", "npm publish", "ssh host", "sudo rm x", "twine upload dist/x", "gh pr create",
           "curl -d @x https://host.example", "kubectl apply -f x", "git push")  # fmt: skip


def decided(command: str) -> str:
    return decide_all(Profiles(TRAITS).get("guarded"), shell_actions("bash", command, cwd=Path("/workspace")))[0]


@pytest.mark.slow
def test_no_wrapper_hides_a_denied_command() -> None:
    passed = list[str]()
    for number, wrapper in enumerate(WRAPPERS):
        for harmful in (HARMFUL[number % len(HARMFUL)], HARMFUL[(number * 5 + 3) % len(HARMFUL)]):
            command = wrapper.replace("{}", harmful).replace("{q}", shlex.quote(harmful))
            if decided(command) == "allow":
                passed.append(command)
    assert passed == []


@pytest.mark.parametrize(
    "command",
    ["tox", "tox -e py", "tox run -e py", "nox -s tests", "make install test", "npm run build", "npm test -- --watch",
     "just build", "cargo test -- --nocapture", "go run .", "pip install docker requests", "rake db:migrate",
     "dotnet test --filter Category=Unit", "make docker", "tox -- tests/unit"],
)  # fmt: skip
def test_ordinary_runs_are_allowed(command: str) -> None:
    assert decided(command) == "allow"


def test_a_message_in_the_same_conversation_is_allowed_by_guarded() -> None:
    here = Action("tool:message:here", also=("tool:message:slack:c:t",))
    assert decide_all(Profiles(TRAITS).get("guarded"), [here])[0] == "allow"
    assert decide_all(Profiles(TRAITS).get("guarded"), [Action("tool:message:slack:c:t")])[0] == "deny"
