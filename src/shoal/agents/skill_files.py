"""Write, install and delete skills.

Changes are checked and audited. Changes to an agent's own skills can be undone. Archives are untrusted, so their
unpacked size is limited and their files stay in the skills' folders.
"""

import io
import stat
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from shoal.agents.versions import EDIT, History, read_file, shown_digest, write_file
from shoal.kernel.errors import Conflict, FetchError, InvalidInput, NotFound, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.records import AuditEntry
from shoal.net.addresses import Fetcher, FetchRequest
from shoal.store.audit import AuditLog
from shoal.turn.skills import (
    SKILL_BYTES_MAX,
    SKILL_FILE,
    SkillProblem,
    SkillRoot,
    is_skill_file,
    parse_skill,
)
from shoal.turn.text_files import FileCache, SkillReader

CHAIN = "skills"
ARCHIVE_BYTES_MAX = 5_242_880
UNPACKED_BYTES_MAX = 26_214_400
FILES_MAX = 500
DEPTH_MAX = 8
PART_CHARS_MAX = 100
FETCH_SECONDS_MAX = 20.0


async def fetch_skills(fetcher: Fetcher, url: str) -> bytes:
    """Download an archive of skills, or a single SKILL.md. Only https is allowed. Raises InvalidInput."""
    try:
        response = await fetcher.fetch(
            FetchRequest(url, bytes_max=ARCHIVE_BYTES_MAX, seconds_max=FETCH_SECONDS_MAX, tls_only=True)
        )
    except FetchError as error:
        raise InvalidInput(f"{error} Download the archive yourself and install the file.") from error
    if response.status != 200:
        raise InvalidInput(f"{url[:200]} returned status {response.status}. Check the URL.")
    if response.cut:
        raise InvalidInput(
            f"The file at {url[:200]} is larger than {ARCHIVE_BYTES_MAX // 1048576} MiB. Use a smaller archive."
        )
    return response.body


async def install_skills(
    root: SkillRoot, agent_home: Path | None, archive: bytes, by: str, audit: AuditLog
) -> list[str]:
    """Install the skills of a zip archive, or a single SKILL.md, and return their names.

    Checks all skills before it writes the first one. Raises InvalidInput for an invalid archive, Conflict if a skill
    already exists, and the errors of `put_skill`.
    """
    # A SKILL.md starts like this. An archive never does.
    if archive.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"---", b"#", b"<!--")):
        folders = {"": {SKILL_FILE: archive}}
    else:
        folders = await in_thread(lambda: unpack_skills(archive))
    texts: dict[str, str] = {}
    files_of: dict[str, Mapping[str, bytes]] = {}
    for folder, files in folders.items():
        _check_size(files[SKILL_FILE])
        try:
            text = files[SKILL_FILE].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"The {SKILL_FILE} in {folder[:80]!r} is not UTF-8 text. Save the file as UTF-8."
            ) from error
        parsed = parse_skill(root.path / (folder or "-") / SKILL_FILE, text, root.scope)
        if isinstance(parsed, SkillProblem):
            raise InvalidInput(parsed.text.replace("is skipped", "cannot be installed"))
        if parsed.name in texts:
            raise InvalidInput(f"The archive contains two skills named {parsed.name!r}.")
        if (root.path / parsed.name).is_symlink() or _file_of(root, parsed.name).exists():
            raise Conflict(f"The skill {parsed.name} already exists. Remove it first.")
        texts[parsed.name], files_of[parsed.name] = text, files
    for name, files in files_of.items():

        def write(name: str = name, files: Mapping[str, bytes] = files) -> None:
            for path, content in files.items():
                if path != SKILL_FILE:
                    write_file(root.path / name / path, content)

        await in_thread(write)
        # Write SKILL.md last, because it makes the skill visible.
        await put_skill(root, agent_home, name, texts[name], by, audit)
    return [*texts]


def unpack_skills(archive: bytes) -> dict[str, dict[str, bytes]]:
    """Return the files of each skill in a zip archive, by folder name.

    The name is empty for a skill at the archive's root. Skips hidden files. Raises InvalidInput.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            files = _files(opened)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise InvalidInput("The file is not a readable zip archive. Create the archive again.") from error
    folders = sorted((path.parent for path in files if is_skill_file(path.name)), key=lambda folder: len(folder.parts))
    skills: dict[str, dict[str, bytes]] = {}
    taken: list[PurePosixPath] = []
    for folder in folders:
        if any(folder.is_relative_to(other) for other in taken):
            continue  # The folder belongs to an enclosing skill.
        taken.append(folder)
        below = {path.relative_to(folder): content for path, content in files.items() if path.is_relative_to(folder)}
        if folder.name in skills:
            raise InvalidInput(f"The archive contains two skills named {folder.name[:80]!r}.")
        skills[folder.name] = {
            SKILL_FILE if is_skill_file(str(path)) else str(path): content for path, content in below.items()
        }
    if not skills:
        raise InvalidInput(f"The archive contains no {SKILL_FILE}. A skill is a folder that contains this file.")
    return skills


def _files(archive: zipfile.ZipFile) -> dict[PurePosixPath, bytes]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > FILES_MAX:
        raise InvalidInput(f"The archive contains {len(entries):,} files. The maximum is {FILES_MAX}.")
    files: dict[PurePosixPath, bytes] = {}
    seen: set[str] = set()
    left = UNPACKED_BYTES_MAX
    for entry in entries:
        shown = f"The archive contains {entry.filename[:120]!r}"
        path, mode = PurePosixPath(entry.filename), entry.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise InvalidInput(f"{shown}, which is a link or not a regular file. Put the file itself in the archive.")
        if path.is_absolute() or ".." in path.parts or any(char in entry.filename for char in "\\:\0"):
            raise InvalidInput(f"{shown}, which points outside the archive. Create the archive from inside its folder.")
        if len(path.parts) > DEPTH_MAX or any(
            len(part) > PART_CHARS_MAX or not part.isprintable() for part in path.parts
        ):
            name = repr(entry.filename[:120])
            raise InvalidInput(f"{name} is too long, nested too deeply, or has unprintable characters. Rename it.")
        if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
            continue
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidInput(
                f"{shown}, which uses an unsupported compression method. Create an ordinary zip archive."
            )
        if entry.flag_bits & 1:
            raise InvalidInput("The archive is encrypted. Create an archive without a password.")
        if str(path).casefold() in seen:
            raise InvalidInput(f"{shown} twice.")
        seen.add(str(path).casefold())
        with archive.open(entry) as opened:
            content = opened.read(left + 1)
        left -= len(content)
        if left < 0:
            raise InvalidInput(f"The archive unpacks to more than {UNPACKED_BYTES_MAX // 1_048_576} MiB.")
        files[path] = content
    if odd := next((path for path in files for parent in path.parents if parent in files), None):
        raise InvalidInput(f"The archive contains {str(odd)[:120]!r} below a path that is also a file.")
    return files


def _check_size(text: bytes) -> None:
    if len(text) > SKILL_BYTES_MAX:
        raise InvalidInput(
            f"A {SKILL_FILE} may have at most {SKILL_BYTES_MAX:,} bytes. Move the rest to files next to it."
        )


def _file_of(root: SkillRoot, name: str) -> Path:
    skills = SkillReader(FileCache()).read((root,)).found
    return next((skill.path for skill in skills if skill.name == name), root.path / name / SKILL_FILE)


async def put_skill(
    root: SkillRoot, agent_home: Path | None, name: str, text: str | None, by: str, audit: AuditLog
) -> None:
    """Write a skill below a root. If `text` is None, delete it.

    With `agent_home`, the change is committed in that agent's repository. Raises InvalidInput if the text is not a
    valid skill, NotFound if the skill to delete does not exist, Conflict if git cannot commit, OSError and
    StoreError.
    """
    path = await in_thread(lambda: _file_of(root, name))
    if text is not None:
        _check_size(text.encode())
        skill = parse_skill(path, text, root.scope)
        if isinstance(skill, SkillProblem):
            raise InvalidInput(skill.text)
        if skill.name != name:
            raise InvalidInput(
                f"The front matter names the skill {skill.name!r}, but the folder is {name[:80]!r}. Use one name."
            )
    new = None if text is None else text.encode()
    what = f"{'write' if text is not None else 'delete'} skill {name}"

    def make() -> bytes | None:
        old = read_file(path)
        if old is None and new is None:
            raise NotFound(f"The skill {name[:80]!r} does not exist in scope {root.scope}.")
        if agent_home is not None:
            agent_home.mkdir(parents=True, exist_ok=True)
            history = History(agent_home)
            history.open()
            write_file(path, new)
            edited = path.relative_to(agent_home).as_posix()
            history.record(path, what, by, f"{EDIT}: {edited}", f"Asked-by: {by}")
        else:
            write_file(path, new)
        if new is None:
            with suppress(OSError):  # Keep the folder if the skill has other files.
                path.parent.rmdir()
        return old

    try:
        old = await in_thread(make)
    except ToolError as error:  # git is missing or busy
        raise Conflict(str(error)) from error
    detail = f"{root.scope} before {shown_digest(old)} after {shown_digest(new)}"
    agent = agent_home.name if agent_home is not None else ""
    await audit.record(CHAIN, [AuditEntry("skill", what, "done", user=by, agent=agent, detail=detail)])
