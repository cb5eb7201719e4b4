"""README's first output, and its two files over Megatron's and DTensor's YAML, which `check` and `plan` take."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_ada.cli.main import app, run_guarded
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan

pytestmark = pytest.mark.long

README = Path(__file__).resolve().parents[2] / "README.md"
BASES = ("grpo_math_1B_megatron.yaml", "grpo_math_1B.yaml")
FILES = re.findall(r"^```yaml\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
ADAPTIVE = [False, True]  # the section `reinforce_ada`, in the order of the files


def test_the_log_of_the_first_page_says_what_stands_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = README.read_text(encoding="utf-8")
    (words,) = re.findall(r"^nemo-ada (whatif \S+ --group \d+)", page, re.M)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.chdir(README.parent)
    run_guarded(lambda: app(words.split(), standalone_mode=False))
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("text", "adaptive"), list(zip(FILES, ADAPTIVE, strict=True)))
def test_a_file_of_the_first_page_makes_a_config_of_a_nemo_rl_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, base: str, text: str,
    adaptive: bool,
) -> None:  # fmt: skip
    def short(config: Path, words: list[str], options: PlanOptions) -> Plan:
        return make_plan(config, words, replace(options, steps=3))  # 24 take six times as long

    monkeypatch.setattr("nemo_ada.cli.plan.make_plan", short)
    assert "defaults: your_config.yaml" in text
    theirs = Path(os.environ["NEMO_RL_HOME"]) / "examples/configs" / base
    config = tmp_path / "my.yaml"
    config.write_text(text.replace("your_config.yaml", str(theirs)), encoding="utf-8")
    run_guarded(lambda: app(["check", str(config), "--json"], standalone_mode=False))
    found = json.loads(capsys.readouterr().out)
    findings = found["findings"] if isinstance(found, dict) else found
    errors = {finding["key"] for finding in findings if finding["level"] == "error"}
    assert errors <= {"policy.model_name"}  # the model is not in this machine's cache
    assert ("reinforce_ada" in text) == adaptive
    assert any(f["key"] == "reinforce_ada" and "own algorithm" in f["message"] for f in findings) != adaptive
    run_guarded(lambda: app(["plan", str(config), "--time", "04:00:00"], standalone_mode=False))
    planned = capsys.readouterr().out
    assert "this plan" in planned and ("DTensor" in planned) == (base == "grpo_math_1B.yaml")
