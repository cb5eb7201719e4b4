"""`nemo-ada check` on files: both kinds of YAML, and what cannot be looked at here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nemo_ada.check import data, gpu
from nemo_ada.check.command import examine
from nemo_ada.check.command import recipe as check_recipe
from nemo_ada.check.finding import exit_code
from nemo_ada.cluster.config import Values
from nemo_ada.cluster.site import site_setting

sys.path.insert(0, str(Path(__file__).parent))
from recipes import changed

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "configs").glob("*/*-*.yaml") if path.parent.name != "eval")
needs_checkout = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")


@needs_checkout
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_gpu_recipe_passes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = examine(path, verifier=False, site=False)
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
    path = ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp2.yaml"
    found = examine(path, ["policy.max_total_sequence_length=8192"], verifier=False)
    assert "policy.max_total_sequence_length" in {finding.key for finding in found if finding.level == "error"}


def test_without_a_checkout_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    found = examine(ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp2.yaml")
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
    found, gib = gpu.node(Values({}))
    assert gib is None
    assert {finding.key for finding in found} == {"gpu.driver", "gpu.memory", "gpu.fp8", "gpu.apex"}
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
    path.write_text("\n" + path.read_text())
    assert keys("answer") == [("ok", "data.train.data_path")]
    path.unlink()
    assert keys("answer") == [("error", "data.train.data_path")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory); name a .jsonl file that exists"),
        ("", "is empty; write one JSON object per line"),
        ("\n \n", "is empty; write one JSON object per line"),
        ("[1]\n", "does not begin with a JSON object"),
        ("{'problem': 1}\n", "does not begin with a JSON object"),
    ],
)
def test_a_local_file_without_a_record_says_what_is_wrong(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    if content is not None:
        path.write_text(content)
    found = list(data.dataset(Values({"data": {"train": {"data_path": str(path)}}})))
    assert [(finding.level, finding.key) for finding in found] == [("error", "data.train.data_path")]
    assert message in found[0].message


BUILT_ON_NEMO_RL = ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp2.yaml"


def test_a_wrong_checkout_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    found = examine(BUILT_ON_NEMO_RL, verifier=False)
    assert exit_code(found) == 2
    assert f"NEMO_RL_HOME={tmp_path} is no checkout of NeMo-RL: it has no folder examples/configs" in found[0].message
    assert "export NEMO_RL_HOME=/path/to/RL" in found[0].message


def test_the_sites_file_is_read_where_the_environment_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONTAINER", "RUN_ROOT", "NEMO_RL_HOME"):
        monkeypatch.delenv(name, raising=False)
    site = tmp_path / "site.env"
    site.write_text(
        f"# CONTAINER=no\nCONTAINER=/nowhere.sqsh   # the image\nexport RUN_ROOT='{tmp_path}'\nHF_HOME=$HOME/x\n"
    )
    monkeypatch.setenv("NEMO_ADA_SITE", str(site))
    assert [site_setting(name) for name in ("CONTAINER", "RUN_ROOT", "HF_HOME", "MOUNTS")] == [
        "/nowhere.sqsh", str(tmp_path), "", "",
    ]  # fmt: skip
    assert [finding.level for finding in data.image()] == ["error"]
    disk = next(f for f in check_recipe(changed({})) if f.key == "checkpointing.checkpoint_dir")
    assert disk.message.endswith(f"are free at {tmp_path} (RUN_ROOT)") or f"{tmp_path} (RUN_ROOT)" in disk.message
    monkeypatch.setenv("RUN_ROOT", "/")
    assert site_setting("RUN_ROOT") == "/"


def test_the_checkout_of_the_sites_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", "set so that it is restored")
    monkeypatch.delenv("NEMO_RL_HOME")
    (tmp_path / "RL").mkdir()
    (tmp_path / "site.env").write_text(f"NEMO_RL_HOME={tmp_path / 'RL'}\n")
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "site.env"))
    assert f"NEMO_RL_HOME={tmp_path / 'RL'} is no checkout" in examine(BUILT_ON_NEMO_RL, verifier=False)[0].message


def test_the_assumed_gpu_and_the_exit_codes_are_said(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(changed({})))
    said = [finding for finding in examine(path, verifier=False) if finding.key == "gpu.memory"]
    assert [finding.level for finding in said] == ["skipped"] and "assumed to be H100-80GB" in said[0].message
    done = subprocess.run(
        [sys.executable, "-m", "nemo_ada.cli", "check", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert "1 warnings only" in done.stdout


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


@pytest.mark.parametrize("cap", [None, 4096])
def test_caps_that_dynamic_sampling_multiplies_are_told(cap: int | None) -> None:
    config = changed({"grpo.use_dynamic_sampling": True, "grpo.dynamic_sampling_max_gen_batches": 6})
    config["reinforce_ada"] = {"preset": "ada_seq_balance", "budget": {"max_samples": cap}}
    told = [finding for finding in check_recipe(config) if finding.key == "grpo.use_dynamic_sampling"]
    assert [finding.level for finding in told] == (["warning"] if cap else [])
    assert all("max_samples=4096" in finding.message and "6 times" in finding.message for finding in told)
