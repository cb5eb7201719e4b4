"""The launcher around the real grpo_train (`launch.supervised`), and what of it runs without NeMo-RL.

1. A stop file ends the run after the step, saved; the continued run is the uninterrupted one.
2. A job that ends while responses are drawn gives the step up, saves the state before it, and loses no prompt.
3. NeMo-RL's own recipes have no misspelled key; near misses are named.
4. The math environment: verdicts, and a hanging answer that has no label.
5. Checkpoints of another configuration, and data settings that cannot work, are refused by their keys.
6. A W&B run keeps its id over restarts.
7. Validations and saves are timed apart from steps; a stalled engine interrupts the run instead of failing it.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
import time
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from nemo_ada.cli.main import guarded
from nemo_ada.errors import ProcessLostError, StallError, UserError
from nemo_ada.nemo import launch as launch_module
from nemo_ada.nemo.async_rollout import AsyncSource
from nemo_ada.nemo.checkpoint import clear_abandoned
from nemo_ada.nemo.job import (
    Progress,
    SamplingStopCheck,
    job_timeout,
    save_between_steps,
    timed_saves,
    timed_validations,
)
from nemo_ada.nemo.launch import (
    check_checkpoint,
    check_data,
    check_learner,
    continue_tracking,
    load,
    lost_process,
    supervised,
)
from nemo_ada.nemo.targets import LOOP
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STALLED, JOB_END, MARGIN_SECONDS, JobControl
from nemo_ada.verify.selftest import HANGING

STEPS = 5
ADA = {"preset": "ada_est_ema", "sampling": {"min_responses": 2}}  # the harness's groups of 4 must leave a choice
OURS = {"grpo.adv_estimator.name": "reinforce_ada", "reinforce_ada": ADA}
real = pytest.mark.nemo_rl


def launch(
    harness: ModuleType, folder: Path, run_dir: Path, changes: dict[str, Any] | None = None, **options: Any
) -> tuple[bool, Any, Progress]:
    """What launch.train does after NeMo-RL's set-up, on the harness's parts."""
    run_dir.mkdir(exist_ok=True)
    parts = harness.build(harness.make_config(folder, STEPS, OURS | (changes or {})), **options)
    control = JobControl(run_dir, STEPS)
    progress = Progress.of(parts.save_state, parts.dataloader, 4)
    given = {
        "policy": parts.policy,
        "policy_generation": parts.generation,
        **{
            name: getattr(parts, name)
            for name in (
                "dataloader",
                "val_dataloader",
                "tokenizer",
                "loss_fn",
                "task_to_env",
                "val_task_to_env",
                "logger",
                "checkpointer",
                "save_state",
                "master_config",
            )
        },
    }
    stopped = supervised(harness.grpo, given, control, progress)
    return stopped, parts, progress


def weights(parts: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in parts.policy.model.state_dict().items()}


def losses(parts: Any) -> dict[int, float]:
    steps = parts.recorder.metrics
    return {step: float(values["train/loss"]) for step, values in steps.items() if "train/loss" in values}


def recorded(run_dir: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The run's records without what depends on the clock: steps, then evaluations."""

    def timeless(name: str) -> list[dict[str, Any]]:
        timed = ("time/", "timing/", "performance/", "ada/sampling_seconds", "ada/engine_utilisation", "total/seconds")
        return [
            {key: value for key, value in line.items() if not key.startswith(timed) and "per_sec" not in key}
            for line in read_lines(run_dir / f"{name}.jsonl")
        ]

    return timeless("metrics"), timeless("evaluations")


@pytest.fixture(scope="module")
def straight(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("straight")
    stopped, parts, _ = launch(harness, folder, folder / "run")
    assert not stopped
    return parts


@real
def test_a_stop_file_ends_the_run_after_the_step_and_it_continues(
    harness: ModuleType, straight: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"

    def stop(step: int) -> None:
        if step == 2:
            (run_dir / "STOP").touch()

    never = {"checkpointing.save_period": 100}
    stopped, first, progress = launch(harness, tmp_path, run_dir, never, before_train=stop)
    assert stopped and progress.total_steps == 3 and "stop file" in str(progress.reason)
    assert [path.name for path in first.checkpointer.checkpoint_dir.iterdir()] == ["step_3"]
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "running" and status["step"] == 3
    (run_dir / "STOP").unlink()
    stopped, second, progress = launch(harness, tmp_path, run_dir, never)
    assert not stopped and progress.total_steps == STEPS
    assert losses(first) | losses(second) == losses(straight)
    final = weights(straight)
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights(second).items())
    assert recorded(tmp_path / "run") == recorded(Path(straight.config["logger"]["log_dir"]).parent / "run")


@real
def test_a_real_checkpoint_is_continued_by_its_own_configuration_only(harness: ModuleType, straight: Any) -> None:
    def configured(changes: dict[str, Any]) -> Any:
        config = copy.deepcopy(straight.config)
        for section, values in changes.items():
            config[section] |= values
        return harness.grpo.MasterConfig(**config)

    check_checkpoint(straight.checkpointer, configured({"grpo": {"max_num_steps": 9}}), resume=True)
    other = configured({"grpo": {"seed": 8}, "loss_fn": {"ratio_clip_max": 0.3}})
    with pytest.raises(UserError, match=r"grpo\.seed: 7 -> 8, loss_fn\.ratio_clip_max: 0\.2 -> 0\.3"):
        check_checkpoint(straight.checkpointer, other, resume=True)


@real
def test_a_job_that_ends_while_sampling_drops_the_step_and_loses_no_prompt(
    harness: ModuleType, straight: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemo_ada.nemo.job.CHECK_SECONDS", 0.0)
    original = SamplingStopCheck.__call__

    def late(self: SamplingStopCheck) -> Any:
        if self._progress.total_steps == 3:
            self._end = time.time() + 1.0
        return original(self)

    monkeypatch.setattr(SamplingStopCheck, "__call__", late)
    never = {"checkpointing.save_period": 100}
    stopped, first, progress = launch(harness, tmp_path, tmp_path / "run", never)
    assert stopped and progress.total_steps == 3 and "too few" in str(progress.reason)
    assert [path.name for path in first.checkpointer.checkpoint_dir.iterdir()] == ["step_3"]
    assert not vars(first.checkpointer).keys() & {"finalize_checkpoint", "init_tmp_checkpoint"}
    monkeypatch.undo()
    stopped, second, _ = launch(harness, tmp_path, tmp_path / "run", never)
    assert not stopped
    assert losses(first) | losses(second) == losses(straight)
    final = weights(straight)
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights(second).items())


@real
def test_nemo_rls_recipes_have_no_near_miss_and_ours_are_found(harness: ModuleType) -> None:
    from nemo_ada.nemo.config_check import check_names

    schema = harness.grpo.MasterConfig
    checked = 0
    for path in sorted(harness.EXAMPLE.parent.rglob("grpo*.yaml")):
        try:
            config = load(path, [])
        except UserError:
            continue  # needs variables of its own
        check_names(config, schema)
        checked += 1
    assert checked > 20
    config = load(harness.EXAMPLE, [])
    config["gpro"] = {}
    config["grpo"]["batch_multiplyer"] = 2
    config["policy"]["generation"]["max_new_token"] = 2
    with pytest.raises(UserError) as caught:
        check_names(config, schema)
    assert sorted(str(caught.value).splitlines()) == [
        "unknown key gpro; did you mean grpo?",
        "unknown key grpo.batch_multiplyer; did you mean grpo.batch_multiplier?",
        "unknown key policy.generation.max_new_token; did you mean policy.generation.max_new_tokens?",
    ]


@real
def test_the_math_environment_gives_no_label_to_a_hanging_answer(harness: ModuleType) -> None:
    environment = importlib.import_module("nemo_ada.nemo.environment")
    judge = environment.MathJudge({"deadline_s": 1.0, "workers": 1})
    try:
        answers = [r"\boxed{42}", r"\boxed{41}", HANGING.response, "42"]
        logs = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}] for answer in answers]
        result = judge.step(logs, [{"ground_truth": reference} for reference in ("42", "42", HANGING.reference, "42")])
    finally:
        judge.shutdown()
    assert result.rewards.tolist()[:2] == [1.0, 0.0] and result.rewards.tolist()[3] == 0.0
    assert result.rewards[2].isnan()
    assert result.observations[2]["content"].startswith("no verdict: verifier_")
    assert result.terminateds.all()
    environment.register()
    environment.register()


def test_a_watch_drains_for_a_stop_and_drops_when_the_update_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemo_ada.nemo.job.CHECK_SECONDS", 0.0)
    progress = Progress(3, 3, 0, 12, 4, 4, updates=deque([50.0, 20.0]))
    earlier = JobControl(tmp_path, 9)
    earlier.observe_validation(4.0)
    earlier.observe_save(6.0)
    assert SamplingStopCheck(JobControl(tmp_path, 9), progress)() is None
    (tmp_path / "STOP").touch()
    assert SamplingStopCheck(JobControl(tmp_path, 9), progress)() == "drain"
    monkeypatch.setenv(JOB_END, str(time.time() + 80))  # 50 + 4 + 6 + a margin of 30 are needed
    assert SamplingStopCheck(JobControl(tmp_path, 9), progress)() == "drop"
    assert json.loads((tmp_path / "heartbeat").read_text())["step"] == 3


class Checkpointer:
    """A checkpoint manager of NeMo-RL v0.7 whose saves take 40 ms."""

    def init_tmp_checkpoint(self) -> None:
        time.sleep(0.02)

    def finalize_checkpoint(self) -> None:
        time.sleep(0.02)


class NewCheckpointer(Checkpointer):
    """Main's: the loop ends a save with another method, which starts a thread."""

    def begin_finalization(self) -> None:
        time.sleep(0.02)

    def finalize_checkpoint(self) -> None:
        raise AssertionError("main's loop does not call it")


class Timeout:
    """NeMo-RL's TimeoutChecker after an iteration of 100 s."""

    iteration_times = (100.0,)

    def check_save(self) -> bool:
        return False


class Loader:
    def __len__(self) -> int:
        return 9

    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("version", ["v0.7", "main"])
def test_validations_and_saves_are_timed_and_are_no_part_of_a_step(tmp_path: Path, version: str) -> None:
    beats: list[str] = []

    def phase() -> None:
        beats.append(json.loads((tmp_path / "heartbeat").read_text())["phase"])

    def validate() -> str:
        loop.run_multi_turn_rollout()
        time.sleep(0.05)
        return "scores"

    loop = ModuleType("loop")
    originals = {"validate": validate, "run_multi_turn_rollout": phase, "run_async_multi_turn_rollout": phase}
    vars(loop).update(originals)
    control, progress = JobControl(tmp_path, 9), Progress(3, 3, 0, 12, 4, 4)
    checkpointer: Any = Checkpointer() if version == "v0.7" else NewCheckpointer()
    control.status("running", 3)
    with timed_saves(checkpointer, control, progress), timed_validations(loop, control, progress):
        loop.run_async_multi_turn_rollout()
        assert loop.validate() == "scores"
        loop.run_multi_turn_rollout()
        checkpointer.init_tmp_checkpoint()
        phase()
        checkpointer.finalize_checkpoint() if version == "v0.7" else checkpointer.begin_finalization()
    assert json.loads((tmp_path / "pace.json").read_text())["saved_step"] == 3, (
        "a job chain ends where this stands still"
    )
    assert beats == ["sampling", "evaluation", "sampling", "save"]
    assert {name: vars(loop)[name] for name in originals} == originals
    assert 0.09 <= control.closing - MARGIN_SECONDS == pytest.approx(progress.pause_seconds)
    job_timeout(Timeout, control, progress, Loader(), None)().check_save()
    assert 99.0 < control.reserve - control.closing < 99.92 and progress.pause_seconds == 0.0


def test_a_stall_interrupts_the_run_and_set_up_is_a_phase_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stalls(*_: Any) -> Any:
        assert json.loads((tmp_path / "run" / "heartbeat").read_text())["phase"] == "set-up"
        raise StallError("no response has finished for 3600 s")

    monkeypatch.setitem(sys.modules, LOOP, SimpleNamespace(MasterConfig=SimpleNamespace))  # type: ignore[arg-type]
    monkeypatch.setattr(launch_module, "check_names", lambda *_: None)
    monkeypatch.setattr(launch_module.nemo_settings, "chosen", lambda _: False)
    monkeypatch.setattr(launch_module, "_set_up", stalls)
    config = {"run_dir": str(tmp_path / "run"), "grpo": {"max_num_steps": 3}}
    assert guarded(lambda: launch_module.train(config)) == EXIT_STALLED
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "interrupted"


@pytest.mark.parametrize(("error", "code"), [(None, EXIT_DONE), (StallError("it hangs"), EXIT_STALLED)])
@pytest.mark.parametrize("one_object", [False, True], ids=["engine and learner", "Megatron for both"])
def test_workers_are_shut_down_whatever_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, code: int, one_object: bool
) -> None:
    """NeMo-RL's own clean-up at exit starts Ray again and may hang."""
    ended: list[str] = []

    def part(name: str) -> Any:
        def shutdown() -> None:
            ended.append(name)
            raise RuntimeError("Ray is gone")

        return SimpleNamespace(shutdown=shutdown)

    def trained(*_: Any) -> bool:
        if error is not None:
            raise error
        return False

    engine = part("engine")
    parts = {
        "policy_generation": engine,
        "policy": engine if one_object else part("learner"),
        "save_state": {},
        "dataloader": Loader(),
        "checkpointer": Saved(tmp_path / "checkpoints", None),
        "master_config": {},
    }
    monkeypatch.setitem(sys.modules, LOOP, SimpleNamespace(MasterConfig=SimpleNamespace))  # type: ignore[arg-type]
    monkeypatch.setattr(launch_module, "check_names", lambda *_: None)
    monkeypatch.setattr(launch_module.nemo_settings, "chosen", lambda _: False)
    monkeypatch.setattr(launch_module, "_set_up", lambda *_: parts)
    monkeypatch.setattr(launch_module, "supervised", trained)
    config = {"run_dir": str(tmp_path / "run"), "grpo": {"max_num_steps": 3, "num_prompts_per_step": 4}}
    assert guarded(lambda: launch_module.train(config)) == code
    assert ended == (["engine"] if one_object else ["engine", "learner"])


def test_an_engine_that_answers_nothing_is_a_stall_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(**_: Any) -> Any:
        time.sleep(2.0)  # not even the event loop is free

    monkeypatch.setattr("nemo_ada.nemo.async_rollout.STALL_SECONDS", 0.2)
    call = SimpleNamespace(policy_generation=None, arguments=dict)
    source = AsyncSource(call, SimpleNamespace(state=lambda _: {}), deaf, 8)  # type: ignore[arg-type]
    source.submit(SimpleNamespace(response_id_N=np.arange(1), prompt_N=np.zeros(1, int)))  # type: ignore[arg-type]
    started = time.monotonic()
    with pytest.raises(StallError, match=r"no response has finished for 0 s, 1 are running"):
        source.poll()
    source.close()
    assert time.monotonic() - started < 1.5
    source._thread.join()


@pytest.mark.parametrize(("answers", "complete"), [(1, False), (2, True)])
def test_an_engine_error_in_the_last_turn_is_no_wrong_answer(answers: int, complete: bool) -> None:
    """NeMo-RL counts a turn before it generates, so the maximum of turns is reached whatever came of the last one."""

    async def rollout(**_: Any) -> Any:
        turns = [
            {"role": "assistant", "token_ids": torch.ones(3), "generation_logprobs": torch.zeros(3), "content": "a"},
            {"role": "environment", "token_ids": torch.ones(1), "content": "go on"},
        ]
        state = {"message_log": turns * answers, "total_reward": torch.tensor(0.0)}
        return state, {"turn_count": 2, "terminated": False, "truncated": False, "max_turns_reached": True}

    call = SimpleNamespace(policy_generation=None, arguments=dict)
    source = AsyncSource(call, SimpleNamespace(state=lambda _: {}, logs=[[]]), rollout, 8)  # type: ignore[arg-type]
    source.submit(SimpleNamespace(response_id_N=np.arange(1), prompt_N=np.zeros(1, int)))  # type: ignore[arg-type]
    assert (source.poll().failures == {}) == complete
    assert source.response(0).complete == complete
    source.close()


class StoppedRun:
    """The parts of a run whose seventh step was dropped; `told` is what they were asked to do, in order."""

    def __init__(self, folder: Path, version: str = "v0.7", asleep: bool = True, save_optimizer: bool = True) -> None:
        self.told: list[str] = []
        self.saved: dict[str, Any] = {}
        self.state: Any = {"total_steps": 4, "val_reward": 0.9, "val:accuracy": 0.9, "train:loss": 1.0}
        self.checkpointer = SimpleNamespace(
            get_latest_checkpoint_path=lambda: str(folder / "step_4"),
            init_tmp_checkpoint=lambda step, state, config: self.tell("begin", state=dict(state)) or folder,
            save_optimizer=save_optimizer,
        )
        if version == "v0.7":
            self.checkpointer.finalize_checkpoint = lambda path: self.tell("rename")
        else:
            self.state = SimpleNamespace(**self.state)
            self.checkpointer.begin_finalization = lambda path, wait_fn: wait_fn() or self.tell("rename")
            self.checkpointer.finalize_pending = lambda: self.tell("wait for the thread")
        self.parts = {
            "checkpointer": self.checkpointer,
            "master_config": {"checkpointing": {"enabled": True}},
            "policy": SimpleNamespace(
                prepare_for_training=lambda: None,
                save_checkpoint=lambda **paths: self.tell("write", **paths),
                finalize_async_save=lambda: self.tell("wait for the writers"),
            ),
            "policy_generation": SimpleNamespace(finish_generation=lambda: asleep),
            "save_state": self.state,
        }

    def tell(self, what: str, **details: Any) -> None:
        self.told.append(what)
        self.saved |= details


LEFT = Progress(6, 6, 0, 24, 9, 4, loader_state={})


@pytest.mark.parametrize("version", ["v0.7", "main"])
def test_a_save_between_steps_has_no_score_of_an_earlier_one(tmp_path: Path, version: str) -> None:
    """With checkpointing.metric_name the best checkpoint's score would make this one the best."""
    run = StoppedRun(tmp_path, version)
    assert save_between_steps(run.parts, LEFT)
    assert run.saved["state"] == {"total_steps": 6, "current_step": 6, "current_epoch": 0, "consumed_samples": 24}
    thread = "wait for the thread"
    assert (
        run.told
        == {
            "v0.7": ["begin", "write", "rename"],
            "main": [thread, "begin", "write", "wait for the writers", "rename", thread],
        }[version]
    )


@pytest.mark.parametrize("save_optimizer", [True, False])
def test_a_save_between_steps_holds_the_optimizer_where_other_saves_do(tmp_path: Path, save_optimizer: bool) -> None:
    run = StoppedRun(tmp_path, save_optimizer=save_optimizer)
    assert save_between_steps(run.parts, LEFT)
    assert run.saved["optimizer_path"] == (str(tmp_path / "policy" / "optimizer") if save_optimizer else None)
    assert run.saved["weights_path"] == str(tmp_path / "policy" / "weights")


def test_an_engine_that_cannot_be_put_to_sleep_ends_the_attempt_without_a_save(tmp_path: Path) -> None:
    run = StoppedRun(tmp_path, asleep=False)
    with pytest.raises(
        ProcessLostError, match="the state after step 6 is not saved; resume=auto continues from step 4"
    ):
        save_between_steps(run.parts, LEFT)
    assert run.told == []


def test_progress_counts_epochs_as_the_loop_does() -> None:
    progress = Progress(0, 0, 0, 0, 2, 4)
    seen = []
    for _ in range(4):
        progress.advance(Loader())
        seen.append((progress.total_steps, progress.current_step, progress.current_epoch, progress.consumed_samples))
    assert seen == [(1, 1, 0, 4), (2, 2, 0, 8), (3, 1, 1, 12), (4, 2, 1, 16)]


DATA_SETTINGS = [
    ({"data": {"use_multiple_dataloader": True}}, True, "data.use_multiple_dataloader=true"),
    ({"data": {"default": {"env_name": "ada_math"}}, "env": {}}, True, "env_name=ada_math needs its settings"),
    (
        {"data": {"validation": [{"env_name": "math"}, {"env_name": "ada_math"}]}, "env": {"ada_math": {}}},
        False,
        "which only grpo.adv_estimator.name=reinforce_ada can take",
    ),
]


@pytest.mark.parametrize(("settings", "adaptive", "message"), DATA_SETTINGS, ids=[row[2] for row in DATA_SETTINGS])
def test_data_that_cannot_work_is_refused_before_anything_starts(
    settings: dict[str, Any], adaptive: bool, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_data(settings, adaptive=adaptive)


LEARNERS = [
    ({"megatron_cfg": {"enabled": True}}, None, None, "TORCH_CUDA_ARCH_LIST is not set"),
    ({"megatron_cfg": {"enabled": True}}, None, "9.0", None),
    ({"dtensor_cfg": {"enabled": True, "_v2": False}}, "safetensors", None, "model_save_format=safetensors"),
    ({"dtensor_cfg": {"enabled": True}}, "torch_save", None, "model_save_format=torch_save"),
    ({"dtensor_cfg": {"enabled": True, "_v2": True}}, "safetensors", None, None),
    ({"dtensor_cfg": {"enabled": True, "_v2": False}}, None, None, None),
]


@pytest.mark.parametrize(("policy", "save_format", "cards", "message"), LEARNERS)
def test_a_learner_that_would_fail_later_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any], save_format: str | None, cards: str | None, message: str
) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if cards is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", cards)
    config = {"policy": policy, "checkpointing": {"enabled": True, "model_save_format": save_format}}
    if message is None:
        check_learner(config)
        return
    with pytest.raises(UserError, match=message):
        check_learner(config)


def test_the_math_environment_is_fine_under_reinforce_ada() -> None:
    settings = {"data": {"train": {"env_name": "ada_math"}, "validation": None}, "env": {"ada_math": {"workers": 2}}}
    check_data(settings, adaptive=True)
    check_data({"data": {"default": {"env_name": "math"}}}, adaptive=False)


class Saved:
    """A checkpoint manager with one checkpoint, or none. optimizer: NeMo-RL finds the optimizer's state in it."""

    def __init__(
        self, folder: Path, config: dict[str, Any] | None, optimizer: bool = True, save_optimizer: bool = True
    ) -> None:
        self.checkpoint_dir, self.save_optimizer, self._optimizer = folder, save_optimizer, optimizer
        if config is not None:
            (folder / "step_4").mkdir(parents=True)
            (folder / "step_4" / "config.yaml").write_text(yaml.safe_dump(config))

    def get_resume_paths(self, newest: str) -> tuple[Path, Path | None]:
        return Path(newest) / "weights", Path(newest) / "optimizer" if self._optimizer else None

    def get_latest_checkpoint_path(self) -> str | None:
        found = sorted(self.checkpoint_dir.glob("step_*"))
        return str(found[-1]) if found else None


MADE_WITH = {
    "grpo": {"max_num_steps": 4, "seed": 7},
    "policy": {"model_name": "a", "megatron_cfg": {"train_iters": 4}},
    "logger": {"log_dir": "exp_001"},
    "loss_fn": {"ratio_clip_max": 0.28},
    "data": {"train": [{"dataset_name": "ResponseDataset", "data_path": "a.jsonl"}]},  # YAML sorts its keys
}


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    return {name: section | sections.get(name, {}) for name, section in MADE_WITH.items()}


def test_a_checkpoint_of_the_same_configuration_may_be_continued(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MADE_WITH)
    check_checkpoint(saved, MADE_WITH, resume=True)
    longer = changed(
        grpo={"max_num_steps": 9}, logger={"log_dir": "exp_002"}, policy={"megatron_cfg": {"train_iters": 9}}
    )
    check_checkpoint(saved, longer, resume=True)
    check_checkpoint(Saved(tmp_path / "empty", None), MADE_WITH, resume=False)


def test_a_checkpoint_of_another_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MADE_WITH)
    other = changed(policy={"model_name": "b"}, loss_fn={"ratio_clip_max": 0.2}, grpo={"val_batch_size": 8})
    with pytest.raises(UserError) as caught:
        check_checkpoint(saved, other, resume=True)
    message = str(caught.value)
    assert f"{tmp_path / 'step_4'} was made with another configuration" in message
    assert "grpo.val_batch_size: None -> 8, loss_fn.ratio_clip_max: 0.28 -> 0.2" in message
    assert 'policy.model_name: "a" -> "b"' in message


def test_a_checkpoint_without_its_optimizer_state_is_not_continued(tmp_path: Path) -> None:
    """Otherwise the learning rate starts its warm-up anew, and only a warning says so."""
    with pytest.raises(UserError, match="step_4: NeMo-RL finds no optimizer state"):
        check_checkpoint(Saved(tmp_path / "lost", MADE_WITH, optimizer=False), MADE_WITH, resume=True)
    unwanted = Saved(tmp_path / "unwanted", MADE_WITH, optimizer=False, save_optimizer=False)
    check_checkpoint(unwanted, MADE_WITH, resume=True)


def test_a_checkpoint_is_not_continued_unasked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already holds step_4; set resume=auto"):
        check_checkpoint(Saved(tmp_path, MADE_WITH), MADE_WITH, resume=False)


def test_a_process_that_ray_lost_is_told_from_a_failure() -> None:
    errors = pytest.importorskip("ray").exceptions
    for lost in (errors.ActorDiedError(), errors.WorkerCrashedError(), errors.LocalRayletDiedError()):
        failed = RuntimeError("the rollout broke")
        failed.__cause__ = lost
        assert lost_process(lost) and lost_process(failed) == lost_process(lost)
    unreachable = errors.RaySystemError("Failed to connect to GCS.\nmore")
    assert lost_process(unreachable) == "System error: Failed to connect to GCS."
    assert lost_process(RuntimeError("the rollout broke")) is None and lost_process(UserError("no")) is None


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MADE_WITH)
    (tmp_path / "tmp_step_5" / "policy").mkdir(parents=True)
    clear_abandoned(saved)
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
    clear_abandoned(Saved(tmp_path / "none_yet", None))


def test_a_tracking_id_of_the_configuration_is_left_alone(tmp_path: Path) -> None:
    logger: dict[str, Any] = {"wandb_enabled": True, "wandb": {"project": "p", "id": "mine"}}
    continue_tracking(logger, tmp_path)
    assert logger["wandb"] == {"project": "p", "id": "mine"} and not list(tmp_path.iterdir())


def test_a_continued_run_keeps_its_tracking_id(tmp_path: Path) -> None:
    first: dict[str, Any] = {"wandb_enabled": True, "wandb": {"project": "p"}}
    second: dict[str, Any] = {"wandb_enabled": True, "wandb": {"project": "p"}}
    continue_tracking(first, tmp_path)
    continue_tracking(second, tmp_path)
    assert first == second and first["wandb"]["resume"] == "allow" and len(first["wandb"]["id"]) == 8
    off: dict[str, Any] = {"wandb_enabled": False, "wandb": {}}
    continue_tracking(off, tmp_path)
    assert off["wandb"] == {}
