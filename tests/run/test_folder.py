"""A run directory belongs to one configuration; records of steps that will be made again are dropped."""

from __future__ import annotations

import json
import os
import re

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.files import write_folder
from nemo_ada.run.folder import CHANGES, RunDir, compute_fingerprint, read_lines
from nemo_ada.run.provenance import read_latest

KILLED = "0f" * 16  # the random part of a temporary name
CONFIG = {"grpo": {"seed": 0, "max_num_steps": 5}, "run_dir": "x", "task": {"name": "t"}}


def test_another_configuration_is_refused_with_the_keys_that_differ(tmp_path):
    run = RunDir(tmp_path / "run")
    run.open(CONFIG, resume=False)
    with pytest.raises(UserError, match=r"grpo.seed: 0 -> 1"):
        run.check({**CONFIG, "grpo": {"seed": 1, "max_num_steps": 5}}, resume=True)
    with pytest.raises(UserError, match="set resume=auto"):
        run.check(CONFIG, resume=False)


def test_more_steps_are_the_same_run():
    longer = {**CONFIG, "grpo": {"seed": 0, "max_num_steps": 50}}
    assert compute_fingerprint(longer) == compute_fingerprint(CONFIG)
    assert compute_fingerprint({**CONFIG, "task": {"name": "u"}}) != compute_fingerprint(CONFIG)


def test_rewind_drops_later_records_and_a_cut_off_last_line(tmp_path):
    run = RunDir(tmp_path)
    files = [tmp_path / name for name in ("metrics.jsonl", "evaluations.jsonl")]
    for file in files:
        file.write_text("".join(json.dumps({"step": s}) + "\n" for s in range(1, 6)) + '{"st')
    run.rewind(3)
    assert [[r["step"] for r in read_lines(file)] for file in files] == [[1, 2, 3]] * 2


def test_damaged_newer_checkpoints_are_set_aside_so_that_no_intact_one_is_dropped_for_them(tmp_path):
    run = RunDir(tmp_path)
    run.checkpoint_folder(2).parent.mkdir(parents=True)
    for step in (2, 4, 10):
        write_folder(run.checkpoint_folder(step), lambda f: (f / "state.json").write_text("{}"))
    assert run.find_newest_checkpoint() == run.checkpoint_folder(10)
    (run.checkpoint_folder(10) / "state.json").write_bytes(b"\0")
    assert run.find_newest_checkpoint() == run.find_resume_point() == run.checkpoint_folder(4)
    assert run.list_checkpoints() == [run.checkpoint_folder(2), run.checkpoint_folder(4)]
    aside = list((tmp_path / "checkpoints").glob("damaged-step_000010-*"))
    assert [(folder / "state.json").read_bytes() for folder in aside] == [b"\0"]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(tmp_path):
    run = RunDir(tmp_path)
    assert run.find_resume_point() is None
    run.checkpoint_folder(2).mkdir(parents=True)
    with pytest.raises(UserError, match=r"every checkpoint is damaged \(step_000002"):
        run.find_resume_point()
    assert run.checkpoint_folder(2).is_dir()


def test_two_runs_do_not_share_a_folder(tmp_path):
    first, second = RunDir(tmp_path), RunDir(tmp_path)
    first.open(CONFIG, resume=False)
    with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on "):
        second.open(CONFIG, resume=True)
    first.close()
    second.open(CONFIG, resume=True)
    second.close()


def test_a_holder_on_another_node_is_waited_for(tmp_path, monkeypatch):
    first, second = RunDir(tmp_path), RunDir(tmp_path)
    monkeypatch.setattr("platform.node", lambda: "a-node-that-went-down")
    first.open(CONFIG, resume=False)
    monkeypatch.undo()
    monkeypatch.setattr("nemo_ada.run.files.time.sleep", lambda _seconds: first.close())
    second.open(CONFIG, resume=True)
    second.close()


def test_what_a_killed_attempt_left_half_written_is_removed(tmp_path):
    saved = tmp_path / "checkpoints" / "step_000001"
    for folder in (
        saved,
        tmp_path / "checkpoints" / f".step_000002.{KILLED}.partial",
        tmp_path / "checkpoints" / f".step_0.{KILLED}.old",
    ):
        folder.mkdir(parents=True)
        (folder / "state.json").touch()
    (tmp_path / f".status.json.{KILLED}.tmp").touch()
    run = RunDir(tmp_path)
    run.open(CONFIG, resume=True)
    run.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000001"]
    assert not list(tmp_path.glob(".*"))


def test_steps_made_again_replace_those_of_the_attempt_before_in_tensorboard(tmp_path):
    for steps, loss in ((range(1, 5), 0.5), (range(3, 5), 0.25)):
        run = RunDir(tmp_path)
        for step in steps:
            run.log("metrics", {"step": step, "train/loss": loss, "note": "no number"}, tensorboard=True)
        run.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert found == [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)]


def test_caps_may_change_when_a_run_goes_on_and_what_changed_is_kept(tmp_path):
    run = RunDir(tmp_path)
    config = {"resume": "never", "lr": 1, "reinforce_ada": {"budget": {"max_samples": None}}}
    run.open(config, resume=False)
    run.close()
    assert not (tmp_path / CHANGES).exists()
    capped = {**config, "resume": "auto", "reinforce_ada": {"budget": {"max_samples": 900}}}
    for _ in range(2):  # the second attempt changes nothing
        run = RunDir(tmp_path)
        run.open(capped, resume=True)
        run.close()
    more = {**capped, "reinforce_ada": {"budget": {"max_samples": 950}}}
    run.open(more, resume=True)
    run.close()
    assert [line["changed"] for line in read_lines(tmp_path / CHANGES)] == [
        {"reinforce_ada.budget.max_samples": caps} for caps in ([None, 900], [900, 950])
    ]
    late = {**capped, "reinforce_ada": {"budget": {"max_samples": 900, "max_group_seconds": 9.0}}}
    with pytest.raises(UserError, match=r"budget\.max_group_seconds: None -> 9\.0"):
        RunDir(tmp_path).open(late, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_somebodys_files_is_refused_and_stays_as_it_is(tmp_path, resume):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match=r"holds thesis\.tex and no run"):
        RunDir(tmp_path).open({"a": 1}, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_the_batch_script_left_in_a_new_folder_is_no_strangers(tmp_path):
    for name in ("attempts", "attempts.tsv", "job", "left_out.tsv", f".model.{KILLED}.partial"):
        (tmp_path / name).touch()
    RunDir(tmp_path).open({"a": 1}, resume=False)
    assert (tmp_path / "config.yaml").exists() and not (tmp_path / f".model.{KILLED}.partial").exists()


LAID_OUT = {
    "cluster": {"num_nodes": 1, "gpus_per_node": 8},
    "policy": {
        "model_name": "m",
        "train_micro_batch_size": 4,
        "sequence_packing": {"enabled": True, "train_mb_tokens": 8192},
        "megatron_cfg": {"tensor_model_parallel_size": 2, "optimizer": {"lr": 1e-6, "optimizer_cpu_offload": False}},
    },
    "grpo": {"seed": 0, "max_val_samples": 64},
}


def with_value(config, key, value):
    section, _, rest = key.partition(".")
    return {**config, section: with_value(config[section], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster.num_nodes", 2), ("policy.train_micro_batch_size", 1),
        ("policy.sequence_packing.train_mb_tokens", 4096),
        ("policy.megatron_cfg.tensor_model_parallel_size", 4), ("grpo.max_val_samples", 32),
        ("policy.megatron_cfg.optimizer.optimizer_cpu_offload", True),
    ],
)  # fmt: skip
def test_layout_and_memory_may_change_and_the_change_is_recorded(tmp_path, caplog, key, value):
    for config in (LAID_OUT, with_value(LAID_OUT, key, value)):
        run = RunDir(tmp_path)
        run.open(config, resume=True)
        run.close()
    ((changed, (_, after)),) = read_lines(tmp_path / CHANGES)[0]["changed"].items()
    assert (changed, after) == (key, value)
    assert key in caplog.text


@pytest.mark.parametrize("key", ["policy.model_name", "policy.megatron_cfg.optimizer.lr", "grpo.seed"])
def test_what_identifies_a_run_may_not_change(tmp_path, key):
    run = RunDir(tmp_path)
    run.open(LAID_OUT, resume=True)
    run.close()
    with pytest.raises(UserError, match=re.escape(key)):
        RunDir(tmp_path).check(with_value(LAID_OUT, key, 9), resume=True)


def saved_run(folder, step):
    """A run's folder that has saved a step, with its records."""
    run = RunDir(folder)
    run.open(CONFIG, resume=True)
    for number in range(1, step + 1):
        run.log("metrics", {"step": number}, tensorboard=False)
    write_folder(run.checkpoint_folder(step), lambda f: (f / "state.json").write_text("{}"))
    (folder / "pace.json").write_text(json.dumps({"saved_step": step, "save_seconds": [], "validation_seconds": []}))
    run.close()
    return run


@pytest.mark.parametrize("named", [False, True])
def test_a_run_whose_checkpoints_are_away_does_not_start_again(tmp_path, named):
    run = saved_run(tmp_path / "run", 5)
    config = CONFIG
    if named:  # as NeMo-RL's configs do
        (tmp_path / "scratch").mkdir()
        (tmp_path / "run" / "checkpoints").rename(tmp_path / "scratch" / "checkpoints")
        config = {**CONFIG, "checkpointing": {"checkpoint_dir": str(tmp_path / "scratch" / "checkpoints")}}
        (tmp_path / "scratch").rename(tmp_path / "unmounted")
    else:
        (tmp_path / "run" / "checkpoints").rename(tmp_path / "purged")
    with pytest.raises(UserError, match="has saved step 5"):
        RunDir(tmp_path / "run").open(config, resume=True)
    assert [record["step"] for record in read_lines(run.path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    if named:
        (tmp_path / "unmounted").rename(tmp_path / "scratch")
    else:
        (tmp_path / "purged").rename(tmp_path / "run" / "checkpoints")
    RunDir(tmp_path / "run").check(config, resume=True)


def test_a_step_folder_behind_a_link_is_no_checkpoint(tmp_path):
    run = saved_run(tmp_path / "run", 5)
    other = saved_run(tmp_path / "other", 7)
    run.checkpoint_folder(7).symlink_to(other.checkpoint_folder(7))
    assert run.find_newest_checkpoint() == run.checkpoint_folder(5)


def test_a_configuration_of_a_few_lines_does_not_hang_a_resume(tmp_path):
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    (tmp_path / "config.yaml").write_text(bomb)
    with pytest.raises(UserError, match=r"config\.yaml"):
        RunDir(tmp_path).check(CONFIG, resume=True)


def test_the_share_of_failures_that_a_run_bears_may_change(tmp_path):
    config = {"reinforce_ada": {"max_failed_share": 0.1, "preset": "grpo"}}
    run = RunDir(tmp_path)
    run.open(config, resume=True)
    run.close()
    RunDir(tmp_path).check({"reinforce_ada": {"max_failed_share": 0.5, "preset": "grpo"}}, resume=True)


def test_environment_json_has_a_line_per_attempt_and_other_software_is_said(tmp_path, monkeypatch, caplog):
    for attempt, number in (("7_1", "1.0"), ("7_2", "1.0"), ("7_3", "2.0")):
        monkeypatch.setenv("ATTEMPT_DIR", f"/runs/x/attempts/{attempt}")
        monkeypatch.setattr("nemo_ada.run.provenance.__version__", number)
        run = RunDir(tmp_path / "run")
        caplog.clear()
        run.open({"a": 1}, resume=True)
        run.close()
        assert ("other software than its last attempt: nemo_ada changed" in caplog.text) == (attempt == "7_3")
    lines = [json.loads(line) for line in (tmp_path / "run" / "environment.json").read_text().splitlines()]
    assert [(line["attempt"], line["nemo_ada"]) for line in lines] == [("7_1", "1.0"), ("7_2", "1.0"), ("7_3", "2.0")]


def test_an_environment_json_of_before_is_read_and_goes_on(tmp_path):
    (tmp_path / "environment.json").write_text(json.dumps({"nemo_ada": "0.9", "commit": "abc"}, indent=1))
    assert read_latest(tmp_path / "environment.json")["nemo_ada"] == "0.9"
    (tmp_path / "environment.json").open("a").write("\n" + json.dumps({"nemo_ada": "1.0"}) + "\n")
    assert read_latest(tmp_path / "environment.json") == {"nemo_ada": "1.0"}
