"""Skills: the contents of SKILL.md, and precedence. A broken skill is reported and not fatal."""

import os
from pathlib import Path

import pytest

from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.turn.skills import (
    BUILTIN_SKILLS,
    SKILLS_MAX,
    Skill,
    SkillProblem,
    SkillRoot,
    parse_skill,
    skill_locations,
    skill_mounts,
    skill_roots,
)
from shoal.turn.text_files import FileCache, SkillReader

THREAD = ThreadId("slack:C1:17.5")


def put(root: Path, name: str, description: str = "Does it", more: str = "") -> Path:
    path = root / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\nBody of {name}\n", "utf-8")
    return path


def broken(text: str, directory: str = "tide") -> str:
    parsed = parse_skill(Path(f"skills/{directory}/SKILL.md"), text, "global")
    assert isinstance(parsed, SkillProblem)
    return parsed.text


# ---- one skill ----


def test_a_complete_skill_is_read() -> None:
    text = (
        "---\nname: tide\ndescription: Tells\n  the tide\nlicense: MIT\ncompatibility: any\nallowed-tools: bash read\n"
        "inline: true\ndisable-model-invocation: false\nunknown-key: [x]\n---\nBody"
    )
    path = Path("skills/tide/SKILL.md")
    assert parse_skill(path, text, "channel") == Skill(
        "tide", "Tells the tide", path, "channel", "Body", inline=True, hidden=False, license="MIT",
        compatibility="any", allowed_tools=("bash", "read"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Tide", "tide"), ("tide-", "tide"), ("-tide", "tide"), ("ti--de", "ti-de"), ("Ti De", "ti-de"),
        ("ti_de", "ti-de"), ("t" * 65, "t" * 64), ("tide\u0301", "tid\u00e9"), ("潮汐", "潮汐"),
        ("Tide (v2.0)!", "tide-v2-0"),
        ("", "folder"), ("[a, b]", "a-b"), ("🌊", "folder"), ("../../etc", "etc"), ("2024", "2024"), ("null", "folder"),
    ],
)  # fmt: skip
def test_names_are_normalized_to_letters_digits_and_hyphens(written: str, name: str) -> None:
    skill = parse_skill(Path("skills/Folder/SKILL.md"), f"---\nname: {written}\ndescription: x\n---", "global")
    assert isinstance(skill, Skill)
    assert skill.name == name


def test_other_errors_are_reported() -> None:
    assert "needs both" in broken("---\nname: tide\n---")
    assert "'tide' is skipped" in broken("no front matter")
    assert "control characters" in broken("---\nname: tide\ndescription: x\n---", "ti\nde")


def test_skill_fields_may_be_missing_or_too_long() -> None:
    def read(text: str) -> Skill:
        skill = parse_skill(Path("skills/tide/SKILL.md"), text, "global")
        assert isinstance(skill, Skill)
        return skill

    assert read("---\n---\n# Tide\n\nTells the tide.\nAnd more.").description == "Tells the tide."
    assert read(f"---\ndescription: {'x' * 2000}\n---").description == "x" * 1023 + "…"
    assert not read("---\ndescription: x\ninline: maybe\n---").inline
    assert read('---\ndescription: x\ndisable-model-invocation: "Yes"\n---').hidden
    assert read("---\ndescription: x\nallowed-tools: Bash(git add:*), Read\n---").allowed_tools == (
        "Bash(git add:*)",
        "Read",
    )
    assert read("---\ndescription: x\nallowed-tools: {a: b}\n---").allowed_tools == ("a",)


# ---- several skills ----


def test_the_narrower_scope_wins(tmp_path: Path) -> None:
    home = Home(tmp_path)
    roots = skill_roots(home, home.agent("main"), THREAD)
    assert [root.scope for root in roots] == ["builtin", "global", "platform", "channel", "agent"]
    for root in roots[1:]:
        put(root.path, "both", root.scope)
        put(root.path, root.scope)
    skills = SkillReader(FileCache()).read(roots[1:])
    assert [(skill.name, skill.description) for skill in skills.found if skill.name == "both"] == [("both", "agent")]
    assert {skill.name for skill in skills.found} == {"both", "global", "platform", "channel", "agent"}
    assert [skill.scope for skill in skills.shadowed] == ["global", "platform", "channel"]


def test_a_broken_skill_does_not_hide_a_valid_one(tmp_path: Path) -> None:
    wide, narrow = SkillRoot("global", tmp_path / "a"), SkillRoot("channel", tmp_path / "b")
    put(wide.path, "tide", "whole")
    put(narrow.path, "tide").write_text("rubbish", "utf-8")
    skills = SkillReader(FileCache()).read((wide, narrow))
    assert [skill.description for skill in skills.found] == ["whole"]
    assert [problem.path for problem in skills.problems] == [narrow.path / "tide" / "SKILL.md"]


def test_skills_are_found_in_nested_folders_in_any_file_spelling(tmp_path: Path) -> None:
    text = "---\nname: {}\ndescription: x\n---"
    files = {
        "sea/tide/SKILL.md": "tide",
        "sea/deep/ebb/SKILL.md": "ebb",
        "a/b/c/far/SKILL.md": "far",
        "tide/skill.md": "tide",
        "tide/inner/SKILL.md": "inner",  # a file inside a skill is not a skill
        "Flood/Skill.MD": "Flood",
    }
    for path, name in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text.format(name))
    skills = SkillReader(FileCache()).read((SkillRoot("global", tmp_path),))
    found = {skill.name: skill.path.relative_to(tmp_path).as_posix() for skill in skills.found}
    assert found == {"ebb": "sea/deep/ebb/SKILL.md", "flood": "Flood/Skill.MD", "tide": "sea/tide/SKILL.md"}
    assert "another skill here has the name 'tide'" in skills.problems[0].text


def test_an_empty_or_unreadable_skill_is_reported_and_a_folder_without_one_is_not(tmp_path: Path) -> None:
    put(tmp_path, "tide")
    put(tmp_path, "empty").write_text("")
    put(tmp_path, "folder").unlink()
    looped = put(tmp_path, "looped")
    looped.unlink()
    looped.symlink_to(looped)
    (tmp_path / "notes.txt").write_text("no skill")
    skills = SkillReader(FileCache()).read((SkillRoot("global", tmp_path),))
    assert [skill.name for skill in skills.found] == ["tide"]
    assert [problem.path.parent.name for problem in skills.problems] == ["empty", "looped"]


def test_a_skill_is_reparsed_only_after_a_change(tmp_path: Path) -> None:
    reader, roots = SkillReader(FileCache()), (SkillRoot("global", tmp_path),)
    path = put(tmp_path, "tide", "one")
    first = reader.read(roots)
    assert reader.read(roots) is first
    put(tmp_path, "ebb")
    second = reader.read(roots)
    assert [skill.name for skill in second.found] == ["ebb", "tide"]
    assert second.found[1] is first.found[0]
    put(tmp_path, "tide", "two")
    assert reader.read(roots).found[1].description == "two"
    path.unlink()
    assert [skill.name for skill in reader.read(roots).found] == ["ebb"]


def test_the_skills_of_a_scope_are_bounded(tmp_path: Path) -> None:
    for number in range(SKILLS_MAX + 1):
        put(tmp_path, f"skill-{number:03}")
    skills = SkillReader(FileCache()).read((SkillRoot("global", tmp_path),))
    assert len(skills.found) == SKILLS_MAX
    assert "only the first 100" in skills.problems[0].text


def test_skill_mounts_are_read_only_and_named_by_scope(tmp_path: Path) -> None:
    roots = (SkillRoot("builtin", BUILTIN_SKILLS), SkillRoot("channel", tmp_path / "missing"))
    (mount,) = skill_mounts(roots)
    assert (mount.host, mount.inside, mount.writable) == (BUILTIN_SKILLS, "/skills/builtin", False)
    assert [place.inside for place in skill_locations(roots)] == ["/skills/builtin", "/skills/channel"]


def test_the_shipped_skills_are_complete() -> None:
    skills = SkillReader(FileCache()).read((SkillRoot("builtin", BUILTIN_SKILLS),))
    assert skills.problems == ()
    assert [skill.name for skill in skills.found] == [
        "daily-brief",
        "schedule-reminder",
        "summarise-channel",
        "watch-web-page",
    ]


# ---- the file cache ----


def test_the_cache_is_bounded_by_number_and_bytes(tmp_path: Path) -> None:
    files = FileCache(files_max=3, bytes_max=100)
    for name in "abcde":
        (tmp_path / name).write_text(name * 30, "utf-8")
        files.read(str(tmp_path / name), 1000)
    assert files.bytes_held == 90
    (tmp_path / "big").write_text("x" * 95, "utf-8")
    files.read(str(tmp_path / "big"), 1000)
    assert files.bytes_held == 95
    (tmp_path / "big").unlink()
    assert files.read(str(tmp_path / "big"), 1000) == ""
    assert files.bytes_held == 0


def test_an_unreadable_directory_is_empty(tmp_path: Path) -> None:
    files = FileCache()
    assert files.names(str(tmp_path / "missing")) == ()
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert files.names(str(tmp_path)) == ("b",)
    os.rmdir(tmp_path / "b")
    assert files.names(str(tmp_path)) == ()
