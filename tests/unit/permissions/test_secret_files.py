"""Files that count as secrets, by name and content, and files that other programs execute."""

from pathlib import Path

import pytest

from shoal.kernel.permissions import Action
from shoal.permissions.code_files import is_code, is_executed
from shoal.permissions.secret_files import CONTENT_BYTES_MAX, holds_secret, is_secret_file
from shoal.permissions.taint import sink_of
from tests.known_tools import TRAITS

SECRETS = """
    keys.txt deploy_rsa kubeconfig terraform.tfstate .docker/config.json cookies.sqlite .envrc prod.env .env
    deploy/.env.local keys/id_ed25519 certificate.pem server.key my-token.txt .ssh/known_hosts home/.aws/config
    passwords.csv creds.json service-account.json .netrc .npmrc .pypirc .pgpass .git-credentials wallet.dat
    .vault_pass master.key wp-config.php .htpasswd shadow my.cnf rclone.conf .s3cfg .boto .config/gh/hosts.yml
    .dockercfg admin.kubeconfig secrets.yaml api_key.txt apikeys.txt accessKeys.csv key4.db logins.json
    .bash_history prod.tfvars state.tfstate.backup client.ovpn wg0.conf store.jks cert.p12 AuthKey_ABC.p8
    app-firebase-adminsdk.json .gnupg/secring.gpg id_rsa.bak .env~ keys.txt.old .env.production.bak prod.env.1
    mnemonic.txt recovery-codes.txt backup_codes.txt .azure/accessTokens.json .dev.vars local.settings.json
    deploy-key .config/sops/age/keys.txt .erlang.cookie .vnc/passwd .terraformrc sftp-config.json
    my_private_key.txt aws-keys.csv .codex/auth.json Cookies KEYS.TXT copy/prod.env.old.bak
    seed-phrase.txt 2fa-backup.txt bearer.txt .m2/settings.xml .gradle/gradle.properties .config/hub winscp.ini
    ngrok.yml .ngrok2/ngrok.yml .google_authenticator tdata/key_datas ntds.dit unattend.xml rsa.txt
    wireguard.conf application-prod.yml github-recovery-codes.txt .stripe/config.toml .circleci/cli.yml .mutt/muttrc
    lastpass.csv bitwarden_export.json ansible-vault.yml .circleci/local.yml
""".split()  # noqa: SIM905
OTHERS = """
    notes.md README.md main.py package.json tokens.py src/auth.py keyboard.md monkey.txt src/keys.go index.html
    data.csv report.pdf Makefile key-findings.md authors.txt tokenizer.py secretary.py Dockerfile config.toml
    settings.json settings.xml gradle.properties hub history.md todo.txt server.crt envoy.yaml
    sessions.py image.png ssh/config ssh.md application-prod.ts
""".split()  # noqa: SIM905
EXECUTED = """
    .bashrc .vscode/tasks.json .github/workflows/x.yml AGENTS.md CLAUDE.md docs/CLAUDE.md .mcp.json Makefile
    conftest.py package.json pyproject.toml .pre-commit-config.yaml .husky/pre-commit .envrc Dockerfile
    Dockerfile.dev setup.py sitecustomize.py x.pth .gitattributes .npmrc justfile docker-compose.prod.yml
    Jenkinsfile tox.ini flake.nix main.tf vite.config.ts requirements-dev.txt Cargo.toml build.rs go.mod
    hooks/post-commit node_modules/x/index.js .cursor/rules/a.mdc GEMINI.md SKILL.md crontab my.service
    app.desktop agents.md Taskfile.yml .idea/workspace.xml project.code-workspace
""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", SECRETS)
def test_usual_names_of_secrets_are_known(path: str) -> None:
    assert is_secret_file(path)
    assert "secret" in sink_of(Action(f"tool:read:/workspace/{path}"), TRAITS)


@pytest.mark.parametrize("path", OTHERS)
def test_other_files_are_not_secrets(path: str) -> None:
    assert not is_secret_file(path)


@pytest.mark.parametrize("path", EXECUTED)
def test_writing_files_that_programs_execute_asks_by_tool_and_command(path: str) -> None:
    assert is_executed(path)
    assert is_code(path)
    for tool in ("write", "edit", "create_file", "str_replace"):
        assert sink_of(Action(f"tool:{tool}:/workspace/{path}"), TRAITS)


@pytest.mark.parametrize("path", ["notes.md", "src/main.py", "report.html", "data/x.json", "lib/a.js", "run.sh"])
def test_writing_other_files_does_not_ask(path: str) -> None:
    assert not sink_of(Action(f"tool:write:/workspace/{path}"), TRAITS)


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA", True),
        ("notes\n" + "x" * 100_000 + "\nAWS: AKIA" + "2Q7ZT4W9R1X8B3N6", True),
        ("token ghp_" + "a1B2" * 10, True),
        ("an ordinary page about keys and passwords", False),
        ("AKIAIOSFODNN7EXAMPLE", False),
    ],
    ids=["private key", "at the end", "token", "words", "example"],
)
def test_secrets_are_detected_by_content(tmp_path: Path, content: str, secret: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    assert len(content) < 2 * CONTENT_BYTES_MAX
    assert holds_secret(file) is secret
    assert not holds_secret(tmp_path / "missing")
