"""The pages name only what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from nemo_ada.cli.main import LazyCommand, app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "recipes").rglob("*.md")]
    + [ROOT / folder / "README.md" for folder in ("configs", "docker", "nemo_ada", "slurm", "tests")]
)
TOP = "(?:nemo_ada|recipes|configs|slurm|docker|tests)"
PATH = re.compile(rf"(?<![\w./~<-]){TOP}/[\w./-]*\w")
ELSEWHERE = {"slurm/site.env", "docker/Dockerfile.ngc_pytorch"}  # the user's, NeMo-RL's
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.M | re.S)


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


def links(text: str) -> list[str]:
    text = without_fences(text)
    return re.findall(r"\]\(([^()\s]+)\)", text) + re.findall(r'<(?:img|source)\b[^>]*\bsrc(?:set)?="([^"]+)"', text)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a forge gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", without_fences(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title)).strip().lower().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """A link to a folder ends the site's strict build."""
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.is_file() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = set(re.findall(rf"^# ({TOP}/\S+)$", text, re.M))  # files that the page tells to write
    named = set(PATH.findall(re.sub(r"\S+://\S+", "", FENCE.sub(shown_commands, text))))
    missing = [path for path in named - written - ELSEWHERE if not any(ROOT.glob(path))]
    assert sorted(missing) == []


def shown_commands(block: re.Match[str]) -> str:
    """Patches are applied by their own test; everything else is searched for paths."""
    return "" if block[2] == "diff" else block[3]


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) for every nemo-ada command in a fenced block, continued lines joined, comments dropped."""
    for page in PAGES:
        for _, language, content in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("bash", "console"):
                for line in content.replace("\\\n", " ").splitlines():
                    match = re.search(r"(?:^\$ |^|[ /;])nemo-ada ((?:[a-z]+ ?)+.*)$", line.partition(" #")[0])
                    if match:
                        yield str(page.relative_to(ROOT)), match[1].strip()


@pytest.mark.parametrize(("page", "words"), sorted(set(commands())))
def test_a_command_has_the_options_that_a_page_uses(page: str, words: str) -> None:
    command, rest = typer.main.get_command(app), words.split()
    while isinstance(command, TyperGroup):
        name = rest[0] if rest and rest[0] in command.commands else "run"  # `eval FOLDER` is `eval run FOLDER`
        assert name in command.commands, f"nemo-ada has no command {words!r}"
        rest = rest[1:] if rest and rest[0] == name else rest
        command = command.commands[name]
        command = command.load() if isinstance(command, LazyCommand) else command
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
    assert used - known - {"--help"} == set()


def test_every_make_target_that_a_page_uses_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    used = {
        (str(page.relative_to(ROOT)), target)
        for page in PAGES
        for target in re.findall(r"(?:^|`|; |&& )make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.M)
    }
    assert len(used) > 10
    assert sorted(use for use in used if use[1] not in targets) == []


def test_the_map_of_the_package_names_only_what_exists() -> None:
    package = ROOT / "nemo_ada"
    named = re.findall(r"`([\w/]+/(?:\w+\.py)?)`", (package / "README.md").read_text(encoding="utf-8"))
    assert [path for path in named if not ((package / path).exists() or path.startswith("tests/"))] == []
    rooms = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(named)


def test_no_page_gives_run_dir_to_a_train_script() -> None:
    """The job watches RUN_DIR, so the script refuses it."""
    blocks = [(page, block[2]) for page in PAGES for block in FENCE.findall(page.read_text(encoding="utf-8"))]
    lines = [(page, line) for page, block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert [(page, line) for page, line in lines if re.search(r"slurm/train_\S+ .*\brun_dir=", line)] == []


GUIDES = sorted((ROOT / "recipes" / "guide").glob("*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_says_at_once_which_question_it_answers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(r"# [^\n]{15,90}\?\n", text)
