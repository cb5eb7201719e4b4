"""A user of the authors' repository brings their verl parquet, unchanged: to three training steps, and to a check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from nemo_ada.cli.main import app, run_guarded
from nemo_ada.cpu.settings import load_run
from nemo_ada.rules.check.command import examine
from nemo_ada.run.folder import read_lines
from nemo_ada.tasks.registry import build_task
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "configs" / "qwen2.5-math-7b.yaml"
SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."
SUFFIX = r" Let's think step by step and output the final answer within \boxed{}."


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    rows = [
        {
            "data_source": "numina_math",
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{n}+{n % 7}={SUFFIX}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + n % 7)},
            "extra_info": {"split": "train", "index": n},
        }
        for n in range(60)
    ]
    path = tmp_path_factory.mktemp("authors") / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def prepare(parquet, out) -> int:
    return run_guarded(lambda: app(["data", "prepare", str(parquet), "--out", str(out)], standalone_mode=False))


@pytest.fixture(scope="module")
def prepared(parquet):
    out = parquet.parent / "set"
    assert prepare(parquet, out) == 0
    return out


def test_data_prepare_says_the_layout_and_the_system_message(parquet, tmp_path, capsys):
    assert prepare(parquet, tmp_path / "again") == 0
    printed = capsys.readouterr().out
    layout = "prompt 'prompt' (messages), reference 'reward_model.ground_truth', system message in `system` in 60 rows"
    assert layout in printed
    first = json.loads((tmp_path / "again" / "dataset.jsonl").read_text().splitlines()[0])
    assert (first["problem"], first["answer"], first["system"]) == (f"0+0={SUFFIX}", "0", SYSTEM)


def test_the_prepared_set_is_a_task_of_its_own_prompts(prepared, tmp_path):
    words = [f"task.path={prepared / 'dataset.jsonl'}", "task.verifier=exact", f"run_dir={tmp_path / 'run'}"]
    config = load_run(ROOT / "configs/cpu/jsonl.yaml", words)
    splits = build_task(config.task).splits()
    assert {(prompt.text, prompt.answer) for prompt in splits.train} <= {
        (f"{n}+{n % 7}={SUFFIX}", str(n + n % 7)) for n in range(60)
    }


@pytest.mark.slow
@pytest.mark.parametrize("source", ["prepared", "unchanged"])
def test_three_steps_on_a_cpu(parquet, prepared, tmp_path, source):
    path = prepared / "dataset.jsonl" if source == "prepared" else parquet
    command = [
        sys.executable, "-m", "nemo_ada.cli", "train", ROOT / "configs/cpu/jsonl.yaml", f"task.path={path}",
        "task.verifier=math", f"run_dir={tmp_path / 'run'}", f"base.cache_dir={tmp_path / 'cache'}", "base.steps=10",
        "grpo.max_num_steps=3", "grpo.num_prompts_per_step=4", "grpo.val_at_start=false", "grpo.val_period=0",
        "policy.generation.max_new_tokens=14", "policy.model.hidden_size=64", "policy.model.ffn_hidden_size=64",
        "policy.model.num_attention_heads=2", "validation.max_prompts=2", "validation.responses=1",
    ]  # fmt: skip
    done = subprocess.run(
        list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [record["step"] for record in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [1, 2, 3]
    printed = " ".join((done.stdout + done.stderr).split())
    assert ("have the system message" in printed) == (source == "unchanged")
    if " live rows 0 " in printed.partition("step 2")[0]:  # what a tiny model of 10 steps gives
        assert "step 1 taught nothing" in printed


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")
def test_check_of_a_cluster_config_takes_the_set_and_says_how_to_make_it(parquet, prepared, monkeypatch):
    monkeypatch.chdir(CLUSTER.parents[1])

    def found(path, *more):
        overrides = [f"data.train.data_path={path}", *more]
        return [
            one for one in examine(CLUSTER, overrides, verifier=False, site=False) if one.key.startswith("data.train")
        ]

    (refused,) = [one for one in found(parquet) if one.level == "error"]
    assert "nemo-ada data prepare" in refused.message and "reward_model.ground_truth" in refused.message
    keys = ("data.train.output_key=answer", "grpo.num_prompts_per_step=32", "policy.train_global_batch_size=512")
    taken = found(prepared / "dataset.jsonl", *keys)
    assert [one.level for one in taken] == ["ok"], taken
    rows = [json.loads(line) for line in (prepared / "dataset.jsonl").read_text().splitlines()]
    columns = prepared.parent / "columns.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{name: row[name] for name in ("problem", "answer")} for row in rows]), columns
    )
    assert [one.level for one in found(columns, *keys)] == ["ok"]
