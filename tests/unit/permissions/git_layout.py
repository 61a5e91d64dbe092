"""A repository with the layout that `git init` creates, made without git."""

from pathlib import Path

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"


def make_repository(folder: Path, config: str = "") -> Path:
    for name in ("hooks", "info", "objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "config").write_text(CONFIG + config)
    return folder
