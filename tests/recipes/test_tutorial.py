"""recipes/guide/tutorial.md does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from nemo_ada.cli.main import app, run_guarded

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "recipes" / "guide" / "tutorial.md").read_text(encoding="utf-8")


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


@pytest.mark.parametrize(("command", "output"), quoted_commands(), ids=[c for c, _ in quoted_commands()])
def test_a_quoted_command_prints_what_the_page_shows(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command)
    if words[1] == "plan" and "NEMO_RL_HOME" not in os.environ:
        pytest.skip("NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
    assert words[0] == "nemo-ada"
    monkeypatch.chdir(ROOT)
    code = run_guarded(lambda: app(words[1:], standalone_mode=False))
    printed = capsys.readouterr()
    assert code == (2 if output.startswith("error:") else 0)
    pattern = re.escape(output.strip()).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, (printed.out + printed.err).strip()), printed.out + printed.err


def test_the_presets_cost_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| (\w+ \(n=\d[^)]*\)) \| (\d+) \| (\d+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 5
    command = re.search(r"^nemo-ada (simulate --beta .*)$", PAGE, re.M)
    assert command is not None
    chosen = [word for name, *_ in rows for word in ("--preset", name.split()[0])]
    app([*shlex.split(command[1]), *chosen, "--json"], standalone_mode=False)
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    for name, responses, steps, zero in rows:
        row = found[name]
        shown = [f"{row[key]['value']:.0f}" for key in ("responses", "engine_steps")]
        assert [*shown, f"{row['zero_signal']['value']:.2f}"] == [responses, steps, zero], name
