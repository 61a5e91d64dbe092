"""Detect commands that fetch content, from their words alone."""

from collections.abc import Iterable

from shoal.kernel import lazy_re
from shoal.kernel.permissions import Action
from shoal.kernel.traits import TraitsByName

_FETCHERS = frozenset(
    """
    curl wget wget2 http https httpie xh lynx w3m links elinks aria2c axel yt-dlp youtube-dl ssh sshpass scp sftp
    rsync ftp lftp ncftp telnet nc ncat netcat socat whois dig host nslookup gh glab hub rclone s3cmd fetchmail
    getmail svn hg bzr fossil cvs darcs gdown kaggle huggingface-cli hf dvc aws gsutil gcloud az azcopy s5cmd b2
    ipfs croc wormhole smbclient sshfs mosh newsboat npx pnpx bunx uvx gallery-dl monolith httrack
    """.split()  # noqa: SIM905
)
_INSTALLERS = frozenset(
    """
    pip pip3 pipx uv poetry pdm pixi hatch rye conda mamba micromamba npm pnpm yarn bun deno cargo gem bundle
    composer go mvn gradle sbt dotnet nuget mix cabal stack opam luarocks cpan cpanm brew apt apt-get dnf yum pacman
    apk zypper port nix nix-env guix flatpak snap docker podman nerdctl helm ollama vcpkg conan pod carthage swift
    dart flutter pub terraform tofu ansible-galaxy mise asdf git-lfs jj
    """.split()  # noqa: SIM905
)
_INSTALLS = frozenset(
    """
    install i ci add get download update upgrade up sync fetch pull restore require clone create dlx exec x deps.get cp
    init init-project plugin use
    """.split()  # noqa: SIM905
)
_FETCHES = r"(?:clone|fetch|pull|ls-remote|submodule|remote update)\b"
_GIT_COMMAND = lazy_re.compile(rf"(?:\A|/)git(?: -\S++(?: (?!{_FETCHES})[^-\s]\S*+)?+)*+")
_GIT_FETCH = lazy_re.compile(rf" {_FETCHES}")


def fetched_by(actions: Iterable[Action], traits: TraitsByName) -> str:
    """Describe the content that a command with these actions fetches. Returns an empty string if its words do not show
    any fetch.

    Detects programs that fetch or install, even inside opaque parts, and URLs in code on the command line. Does not
    detect fetches by a script.
    """
    from shoal.shell.commands import base_name

    for action in actions:
        detail = action.detail if traits.of(action.tool).takes_commands else ""
        words = detail.split(" ")
        name = base_name(words[0])
        if words[1:2] == ["-m"] and name.startswith(("python", "pypy")):
            name, words = words[2] if len(words) > 2 else "", words[2:]
        installs = name in _INSTALLERS and (not _INSTALLS.isdisjoint(words[1:]) or words == ["yarn"])
        if name in _FETCHERS or installs or git_fetches(detail):
            return f"what {name} fetched"
        if "/dev/tcp/" in detail or (action.opaque and "://" in detail):
            return "what a command fetched"
    return ""


def git_fetches(command: str) -> bool:
    return any(_GIT_FETCH.match(command, git.end()) for git in _GIT_COMMAND.finditer(command))
