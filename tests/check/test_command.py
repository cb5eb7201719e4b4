"""`nemo-ada check` on files: both kinds of YAML, and what cannot be looked at here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.check import data, gpu
from nemo_ada.check.command import examine
from nemo_ada.check.finding import exit_code
from nemo_ada.check.recipe import Values

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "configs").glob("*/*-*.yaml") if path.parent.name != "eval")
needs_checkout = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")


@needs_checkout
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_gpu_recipe_passes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = examine(path, verifier=False)
    errors = [finding for finding in found if finding.level == "error"]
    if path.stem.endswith("-apex"):  # refused where the kernel is not there
        assert [finding.key for finding in errors] == ["policy.megatron_cfg.gradient_accumulation_fusion"]
    else:
        assert errors == []
    assert not [finding for finding in found if "no such key" in finding.message]
    assert any(finding.message.startswith("learner") for finding in found)
    assert any(finding.message.startswith("vLLM:") for finding in found)


@needs_checkout
def test_overrides_reach_the_checks() -> None:
    path = ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp4.yaml"
    found = examine(path, ["policy.max_total_sequence_length=8192"], verifier=False)
    assert "policy.max_total_sequence_length" in {finding.key for finding in found if finding.level == "error"}


def test_without_a_checkout_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    found = examine(ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp4.yaml")
    assert exit_code(found) == 2
    assert "set NEMO_RL_HOME to a checkout of NeMo-RL v0.7.0" in found[0].message


def test_a_cpu_recipe_passes_and_its_own_limits_are_seen(tmp_path: Path) -> None:
    path = ROOT / "configs/cpu/jsonl.yaml"
    cache = f"base.cache_dir={tmp_path}"
    data_file = f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}"
    assert exit_code(examine(path, [cache, data_file], verifier=False)) == 0
    broken = examine(path, [cache, data_file, "policy.megatron_cfg.tensor_model_parallel_size=3"], verifier=False)
    assert [finding.level for finding in broken] == ["error"]
    assert "1 or 2 would work" in broken[0].message
    misspelled = examine(path, [cache, "+grpo.num_prompt_per_step=3"], verifier=False)
    assert misspelled[0].key == "grpo.num_prompt_per_step"
    assert "did you mean num_prompts_per_step" in misspelled[0].message


def test_gpu_checks_say_that_they_were_skipped_where_there_is_none() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found, gib = gpu.node()
    assert gib is None
    assert {finding.key for finding in found} == {"gpu.driver", "gpu.memory", "gpu.fp8", "gpu.apex", "gpu.nccl"}
    assert {finding.message for finding in found} == {"skipped: no GPU"}
    assert exit_code(found) == 0


def test_the_columns_of_a_local_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")

    def keys(output: str) -> list[tuple[str, str]]:
        values = Values({"data": {"train": {"data_path": str(path), "input_key": "problem", "output_key": output}}})
        return [(finding.level, finding.key) for finding in data.dataset(values)]

    assert keys("answer") == [("ok", "data.train.data_path")]
    assert keys("gt") == [("error", "data.train.output_key")]
    path.unlink()
    assert keys("answer") == [("error", "data.train.data_path")]


def test_an_image_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER", str(tmp_path / "image.sqsh"))
    assert [finding.level for finding in data.image()] == ["error"]
    (tmp_path / "image.sqsh").touch()
    assert [finding.level for finding in data.image()] == ["ok"]
    monkeypatch.setenv("CONTAINER", "nvcr.io/nvidia/nemo-rl:v0.7.0")
    assert [finding.level for finding in data.image()] == ["skipped"]


def test_the_verifier_is_tried() -> None:
    assert [finding.level for finding in data.verifier()] == ["ok"]


@pytest.mark.parametrize(("override", "code"), [([], 0), (["policy.data_parallel_size=0"], 2)])
def test_the_exit_code_and_the_json_agree(override: list[str], code: int, tmp_path: Path) -> None:
    arguments = [
        str(ROOT / "configs/cpu/jsonl.yaml"), f"base.cache_dir={tmp_path}",
        f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}", *override,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "nemo_ada.cli", "check", "--json", "--no-verifier", *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=200,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["exit_code"] == code
