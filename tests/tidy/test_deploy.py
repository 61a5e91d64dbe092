"""The files in deploy/ are valid according to their own tools and to Shoal's command line."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias  # noqa: TID251 - content of YAML files

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shoal.surfaces.cli.run import run, serve, worker
from tests.tidy.source import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DRAIN_SECONDS = 30
COMMANDS = {"run": run, "serve": serve, "worker": worker}

Document: TypeAlias = dict[str, Any]


def lint(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_yaml_is_well_formed() -> None:
    lint(BIN / "yamllint", "--strict", "--config-file", DEPLOY / ".yamllint.yaml", DEPLOY)


def test_the_dockerfile_passes_hadolint() -> None:
    lint(BIN / "hadolint", DEPLOY / "Dockerfile")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_systemd_units_pass_verification(path: Path, tmp_path: Path) -> None:
    """`systemd-analyze` reports unknown keys. It needs an existing program, so another one replaces `shoal`."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / path.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE))
    result = subprocess.run([tool, "verify", str(unit)], check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_unit_restarts_shoal_and_gives_it_time_to_drain(path: Path) -> None:
    """Covers what Shoal needs from a supervisor, even if `systemd-analyze` is not installed."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE))
    assert settings["Restart"] == "always"
    assert int(settings["TimeoutStopSec"]) > DRAIN_SECONDS
    assert settings["KillMode"] == "mixed", "only Shoal gets SIGTERM; it ends its own children"
    assert "[Install]" in path.read_text()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_manifests_match_the_schemas(path: Path) -> None:
    lint(BIN / "kubernetes-validate", "--strict", path)


def documents() -> Iterator[Document]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def commands() -> Iterator[tuple[str, list[str]]]:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])", dockerfile, re.MULTILINE)
    yield "Dockerfile", yaml.safe_load(command)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        if "command" in service:
            yield f"compose {name}", service["command"]
    for document in documents():
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                yield f"kubernetes {document['metadata']['name']}", container["args"]
    for path in UNITS:
        (line,) = re.findall(r"^ExecStart=\S+/shoal (.*)$", path.read_text(), re.MULTILINE)
        yield path.name, line.replace("%i", "8081").split()


@pytest.mark.parametrize(
    ("place", "arguments"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_shoal_commands_in_the_deployment_files_exist(place: str, arguments: list[str]) -> None:
    name, *options = arguments
    assert name in COMMANDS, f"{place}: there is no `shoal {name}`"
    COMMANDS[name].make_context(name, list(options))


def test_probes_and_ports_agree() -> None:
    for document in documents():
        if document["kind"] == "Deployment":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            port = container["args"][container["args"].index("--port") + 1]
            assert [str(port["containerPort"]) for port in container["ports"]] == [port]
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
            assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > DRAIN_SECONDS


def test_the_autoscaler_uses_a_metric_that_exists() -> None:
    metrics = (ROOT / "src/shoal/surfaces/http/routes_operations.py").read_text()
    (scaler,) = [document for document in documents() if document["kind"] == "HorizontalPodAutoscaler"]
    names = [metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    assert names
    assert all(f'"{name}"' in metrics for name in names)


# ---- contents of the image ----

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
LOCKS = ("image", "build")


def pinned(lock: str) -> dict[str, tuple[str, int]]:
    packages: dict[str, tuple[str, int]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements" / f"{lock}.txt").read_text().strip()):
        named = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", entry)
        assert named is not None, f"requirements/{lock}.txt: not pinned: {entry.splitlines()[0]}"
        packages[canonicalize_name(named[1])] = (named[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)))
    return packages


def steps() -> list[str]:
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    return [line for line in lines.replace("\\\n", " ").splitlines() if line.strip()]


def test_every_base_image_is_pinned_by_digest() -> None:
    named = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    stages: set[str] = set()
    for base, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE):
        image = named.get(base.removeprefix("${").removesuffix("}"), base)
        assert image in stages or BY_DIGEST.fullmatch(image), f"{base} is not pinned by digest"
        stages.add(stage)
    assert len(stages) == 2
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert "build" in service or BY_DIGEST.fullmatch(service["image"]), f"{name} is not pinned by digest"


def test_nothing_is_installed_without_a_hash() -> None:
    commands = [command.strip() for step in steps() if step.startswith("RUN") for command in step.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip (?:install|wheel)\b", command)]
    assert len(installs) == 4
    for command in installs:
        is_checked = "--require-hashes --no-deps" in command
        is_locked = is_checked and re.search(r"-r requirements/(?:image|build)\.txt", command)
        is_offline = "--no-index" in command and "--no-deps" in command
        assert is_locked or is_offline, command
        assert "pip install" in command or "--no-build-isolation" in command, (
            f"builds with unlocked packages: {command}"
        )
    assert not re.search(r"\b(?:curl|wget|npm|ADD)\b", DOCKERFILE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_the_image_has_hashes_and_the_tested_version(lock: str) -> None:
    tested = pinned("dev")
    for name, (version, hashes) in pinned(lock).items():
        assert hashes, f"{name} has no hash; run `make lock`"
        assert tested.get(name, (version, 0))[0] == version, f"{name} is tested with another version; run `make lock`"


def test_the_images_lock_file_contains_all_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (line,) = re.findall(r"image\.txt pyproject\.toml[^\n]*\n([^\n]*)", (ROOT / "scripts" / "lock.sh").read_text())
    extras = re.findall(r"--extra (\S+)", line)
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    wanted = [*project["project"]["dependencies"]]
    wanted += [requirement for extra in extras for requirement in project["project"]["optional-dependencies"][extra]]
    for asked, lock in [(requirement, "image") for requirement in wanted] + [
        (requirement, "build") for requirement in project["build-system"]["requires"]
    ]:
        requirement = Requirement(asked)
        version, _ = pinned(lock).get(canonicalize_name(requirement.name), ("", 0))
        assert version, f"{asked} is not in requirements/{lock}.txt; run `make lock`"
        assert requirement.specifier.contains(version), f"{asked} is locked to {version}; run `make lock`"


def test_the_image_runs_as_an_unprivileged_user() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1].isdecimal()
    assert int(users[-1]) >= 1000


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_and_may_only_read_by_default(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert [action for action in used if re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) is None] == []


def test_the_workflows_are_sound() -> None:
    lint(BIN / "zizmor", "--offline", "--no-progress", ROOT / ".github")
