"""recipes/guide/tutorial.md and recipes/guide/extend.md do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.cli.main import app, guarded
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "recipes" / "guide" / "tutorial.md").read_text(encoding="utf-8")
EXTEND = (ROOT / "recipes" / "guide" / "extend.md").read_text(encoding="utf-8")
ADDITIONS = ("An exit rule", "An objective", "A task")


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """(language, content) of the fenced blocks, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [(language, content) for language, content in found if language in languages]


def quoted_commands() -> list[tuple[str, str]]:
    found = []
    for _, content in blocks(PAGE, "console"):
        for part in re.split(r"^\$ ", content, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def section(title: str) -> str:
    return EXTEND.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(("command", "output"), quoted_commands(), ids=[c for c, _ in quoted_commands()])
def test_a_quoted_command_prints_what_the_page_shows(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command)
    if words[1] == "plan" and "NEMO_RL_HOME" not in os.environ:
        pytest.skip("NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
    assert words[0] == "nemo-ada"
    monkeypatch.chdir(ROOT)
    code = guarded(lambda: app(words[1:], standalone_mode=False))
    printed = capsys.readouterr()
    assert code == (2 if output.startswith("error:") else 0)
    pattern = re.escape(output.strip()).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, (printed.out + printed.err).strip()), printed.out + printed.err


def test_the_presets_cost_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| (\w+ \(n=\d[^)]*\)) \| (\d+) \| (\d+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 6
    command = re.search(r"^nemo-ada (simulate --beta .*)$", PAGE, re.M)
    assert command is not None
    chosen = [word for name, *_ in rows for word in ("--preset", name.split()[0])]
    app([*shlex.split(command[1]), *chosen, "--json"], standalone_mode=False)
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    for name, responses, steps, zero in rows:
        row = found[name]
        shown = [f"{row[key]['mean']:.0f}" for key in ("responses", "engine_steps")]
        assert [*shown, f"{row['zero_signal']['mean']:.2f}"] == [responses, steps, zero], name


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the additions of extend.md."""
    copy = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "nemo_ada", copy / "nemo_ada", ignore=shutil.ignore_patterns("__pycache__"))
    for title in ADDITIONS:
        for language, content in blocks(section(title), "diff", "python"):
            if language == "diff":
                patch = subprocess.run(
                    ["git", "apply", "-"], cwd=copy, input=content, text=True, capture_output=True, check=False,
                    env={**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)},
                )  # fmt: skip
                assert patch.returncode == 0, f"{title}: {patch.stderr}"
            else:
                first, _, code = content.partition("\n")
                path = copy / first.removeprefix("# ")
                path.parent.mkdir(parents=True, exist_ok=True)
                assert not path.exists()
                path.write_text(code, encoding="utf-8")
    return copy


def test_the_additions_pass_their_own_tests(extended: Path) -> None:
    tests = sorted(map(str, (extended / "tests").rglob("test_*.py")))
    assert len(tests) == len(ADDITIONS)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(extended), "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": str(extended), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=extended, env=environment,
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_has_fewer_than_thirty_lines_and_a_test(title: str) -> None:
    found = blocks(section(title), "diff", "python")
    added = [
        line[1:] for language, text in found if language == "diff" for line in re.findall(r"^\+(?!\+).*", text, re.M)
    ]
    files = [text for language, text in found if language == "python" and not text.startswith("# tests/")]
    lines = [line for line in added + "".join(files).splitlines() if line.strip() and not line.startswith("# ")]
    assert 0 < len(lines) < 30
    assert sum(text.startswith("# tests/") for _, text in found) == 1
