"""The launcher around grpo_train: what of it runs without NeMo-RL, and its parts on NeMo-RL's own recipes.

1. The math environment gives no label to what hangs.
2. The end of a job: when sampling drains or drops, what a save between steps holds, what is timed apart from steps.
3. Stalls and lost processes interrupt a run instead of failing it; its workers are shut down whatever ends it.
4. Data, learners and checkpoints that cannot work are refused by their keys. A W&B run keeps its id over restarts.

Whole runs, stopped and continued: test_launch_end_to_end.py.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from nemo_ada.cli.main import run_guarded
from nemo_ada.config.values import Values
from nemo_ada.errors import FailedResponsesError, ProcessLostError, StallError, UserError
from nemo_ada.nemo.launch import command as launch_module
from nemo_ada.nemo.launch import stop_and_save
from nemo_ada.nemo.launch.checkpoint import remove_abandoned
from nemo_ada.nemo.launch.command import (
    check_architectures,
    check_checkpoint,
    check_environments,
    continue_tracking,
    end_environments,
    find_memory_keys,
)
from nemo_ada.nemo.launch.examples import configure_processes
from nemo_ada.nemo.launch.stop_and_save import (
    Progress,
    SamplingStopCheck,
    make_job_timeout,
    save_between_steps,
    time_saves,
    time_validations,
)
from nemo_ada.nemo.rollouts.requests import AsyncSource
from nemo_ada.rules import rulebook, setup
from nemo_ada.rules.facts.upstream import LOOP
from nemo_ada.run.folder import LAYOUT, VOLATILE, is_of_class, read_lines
from nemo_ada.run.job_control import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_LOST,
    EXIT_STALLED,
    EXIT_STOPPED,
    EXIT_USER_ERROR,
    JOB_END,
    MARGIN_SECONDS,
    JobControl,
    find_key_to_lower,
)
from nemo_ada.verify.selftest import HANGING
from tests.faults.processes import ROOT
from tests.patience import PATIENCE

VERSIONS = pytest.mark.parametrize("version", ["v0.7", "main"])


@pytest.mark.nemo_rl
def test_the_math_environment_gives_no_label_to_a_hanging_answer(harness):
    environment = importlib.import_module("nemo_ada.nemo.environment")
    judge = environment.MathJudge({"deadline_s": 1.0, "workers": 1})
    try:
        answers = [r"\boxed{42}", r"\boxed{41}", HANGING[0], "42"]
        logs = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}] for answer in answers]
        result = judge.step(logs, [{"ground_truth": reference} for reference in ("42", "42", HANGING[1], "42")])
    finally:
        judge.shutdown()
    np.testing.assert_array_equal(result.rewards, [1.0, 0.0, np.nan, 0.0])
    assert result.observations[2]["content"].startswith("no verdict: verifier_")
    assert result.terminateds.all()
    environment.register()
    environment.register()


def test_no_gpu_config_lets_nemo_rl_write_out_its_training_batches():
    """It would be half a gigabyte and 25 s of CPU per step; this switch is NeMo-RL v0.7.0's only one."""
    shared = yaml.safe_load((ROOT / "configs" / "common" / "rl.yaml").read_text())
    assert shared["env"]["should_log_nemo_gym_responses"] is True


# -- the end of a job --------------------------------------------------------------------------------------------------


class Loader:
    def __len__(self):
        return 9

    def state_dict(self):
        return {}


def test_sampling_drains_for_a_stop_and_drops_when_the_update_would_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_and_save, "CHECK_SECONDS", 0.0)
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


@VERSIONS
def test_validations_and_saves_are_timed_and_are_no_part_of_a_step(tmp_path, monkeypatch, version):
    """An iteration of 100 s held a validation of 5 s and a save of 4 s. Main's loop ends a save with another method."""
    now, beats = [0.0], []
    monkeypatch.setattr(stop_and_save, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(seconds):
        now[0] += seconds

    def phase():
        beats.append(json.loads((tmp_path / "heartbeat").read_text())["phase"])

    def validate():
        loop.run_multi_turn_rollout()
        (tmp_path / "heartbeat").unlink()
        hooks.on_wait()  # a validation over NeMo-Gym is one call
        phase()
        takes(5.0)
        return "scores", {}

    loop = ModuleType("loop")
    originals = {"validate": validate, "run_multi_turn_rollout": phase, "run_async_multi_turn_rollout": phase}
    vars(loop).update(originals)
    control, progress, hooks = JobControl(tmp_path, 9), Progress(3, 3, 0, 12, 4, 4), SimpleNamespace()
    end = {"v0.7": "finalize_checkpoint", "main": "begin_finalization"}[version]
    checkpointer = SimpleNamespace(init_tmp_checkpoint=lambda: takes(2.0), finalize_checkpoint=lambda: takes(1e9))
    setattr(checkpointer, end, lambda folder: takes(2.0))
    (tmp_path / "tmp_step_3").mkdir()
    (tmp_path / "inputs.json").write_text('{"data": "digest"}')
    control.status("running", 3)
    original = type("TimeoutChecker", (), {"start_iterations": lambda self: None, "check_save": lambda self: False})
    timeout = make_job_timeout(original, control, progress, Loader(), None)()
    timeout.start_iterations()
    takes(91.0)
    with time_saves(checkpointer, control, progress), time_validations(loop, control, progress, hooks):
        loop.run_async_multi_turn_rollout()
        assert loop.validate() == ("scores", {})
        loop.run_multi_turn_rollout()
        checkpointer.init_tmp_checkpoint()
        phase()
        getattr(checkpointer, end)(str(tmp_path / "tmp_step_3"))
    assert json.loads((tmp_path / "tmp_step_3" / "inputs.json").read_text()) == {"data": "digest"}
    assert json.loads((tmp_path / "pace.json").read_text())["saved_step"] == 3, "a run ends where this stands still"
    assert beats == ["sampling", "evaluation", "evaluation", "sampling", "save"]
    assert {name: vars(loop)[name] for name in originals} == originals
    assert control.closing - MARGIN_SECONDS == progress.pause_seconds == 9.0
    assert not timeout.check_save()
    assert control.reserve - control.closing == pytest.approx(91.0) and progress.pause_seconds == 0.0


@pytest.mark.parametrize("name", stop_and_save.GYM_CALLS)
def test_nemo_rls_own_call_over_gym_touches_the_heartbeat_while_it_waits(tmp_path, monkeypatch, name):
    """Stock GRPO has no hooks, and one call waits for all responses."""
    monkeypatch.setattr(stop_and_save, "BEAT_SECONDS", 0.01)
    beat = tmp_path / "heartbeat"

    def rollout():
        beat.unlink()
        deadline = time.monotonic() + PATIENCE
        while not beat.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return beat.exists()

    loop = ModuleType("loop")
    loop.validate, original = (lambda: (getattr(loop, name)(), {})), rollout
    setattr(loop, name, original)
    control, progress = JobControl(tmp_path, 9), Progress(3, 3, 0, 12, 4, 4)
    with time_validations(loop, control, progress, None):
        assert loop.validate() == (True, {})
    assert getattr(loop, name) is original
    assert not [thread for thread in threading.enumerate() if thread.name == "nemo-ada-heartbeat"]


@pytest.mark.parametrize("phase", ["rules", "set-up", "after set-up"])
def test_a_signal_before_training_begins_is_a_stop_after_the_saved_step(tmp_path, monkeypatch, phase):
    """SLURM's TERM may come while NeMo-RL is imported. As a failure it would end the chain."""

    def ends(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)

    monkeypatch.setattr(launch_module.rulebook, "refuse", ends if phase == "rules" else lambda *_: None)
    for name in ("check_config", "check_environments", "check_architectures", "write_contract"):
        monkeypatch.setattr(launch_module, name, lambda *_: None)
    loop = SimpleNamespace(MasterConfig=lambda **config: config)
    monkeypatch.setattr(launch_module, "importlib", SimpleNamespace(import_module=lambda _: loop))
    monkeypatch.setattr(
        launch_module, "_set_up", ends if phase == "set-up" else lambda *_: {"save_state": {}, "dataloader": []}
    )
    monkeypatch.setattr(
        launch_module, "move_through_pinned_memory", ends if phase == "after set-up" else lambda _: None
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "pace.json").write_text('{"saved_step": 4, "save_seconds": [], "validation_seconds": []}')
    config = {"run_dir": str(folder), "resume": "auto", "grpo": {"max_num_steps": 9, "num_prompts_per_step": 2}}
    assert launch_module.train(config) == EXIT_STOPPED
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("stopped", 4, 9)


def test_progress_counts_epochs_as_the_loop_does():
    progress = Progress(0, 0, 0, 0, 2, 4)
    seen = []
    for _ in range(4):
        progress.advance(Loader())
        seen.append((progress.total_steps, progress.current_step, progress.current_epoch, progress.consumed_samples))
    assert seen == [(1, 1, 0, 4), (2, 2, 0, 8), (3, 1, 1, 12), (4, 2, 1, 16)]


class StoppedRun:
    """The parts of a run whose seventh step was dropped; `told` is what they were asked to do, in order."""

    def __init__(self, folder, version="v0.7", asleep=True, save_optimizer=True):
        self.told, self.saved = [], {}
        state = {"total_steps": 4, "val_reward": 0.9, "val:accuracy": 0.9, "train:loss": 1.0}
        checkpointer = SimpleNamespace(
            get_latest_checkpoint_path=lambda: str(folder / "step_4"),
            init_tmp_checkpoint=lambda step, state, config: self.tell("begin", state=dict(state)) or folder,
            save_optimizer=save_optimizer,
        )
        if version == "v0.7":
            checkpointer.finalize_checkpoint = lambda path: self.tell("rename", renamed=path)
        else:
            checkpointer.begin_finalization = lambda path, wait_fn: wait_fn() or self.tell("rename", renamed=path)
            checkpointer.finalize_pending = lambda: self.tell("wait for the thread")
        self.parts = {
            "checkpointer": checkpointer,
            "master_config": {"checkpointing": {"enabled": True}},
            "policy": SimpleNamespace(
                prepare_for_training=lambda: None,
                save_checkpoint=lambda **paths: self.tell("write", **paths),
                finalize_async_save=lambda: self.tell("wait for the writers"),
            ),
            "policy_generation": SimpleNamespace(finish_generation=lambda: asleep),
            "save_state": state if version == "v0.7" else SimpleNamespace(**state),
        }

    def tell(self, what, **details):
        self.told.append(what)
        self.saved |= details


LEFT = Progress(6, 6, 0, 24, 9, 4, loader_state={}, sampler_state={"draws": 6})


@VERSIONS
@pytest.mark.parametrize("save_optimizer", [True, False])
def test_a_save_between_steps_holds_the_optimizer_and_no_score_of_an_earlier_step(tmp_path, version, save_optimizer):
    """With checkpointing.metric_name the best checkpoint's score would make this one the best."""
    run = StoppedRun(tmp_path, version, save_optimizer=save_optimizer)
    hooks = SimpleNamespace(load_state_dict=lambda state: run.tell("rewind", sampler=state))
    assert save_between_steps(run.parts, LEFT, hooks)
    assert run.saved["sampler"] == LEFT.sampler_state, "not what a dropped step has learned"
    assert run.saved["state"] == {"total_steps": 6, "current_step": 6, "current_epoch": 0, "consumed_samples": 24}
    thread = "wait for the thread"
    order = {
        "v0.7": ["rewind", "begin", "write", "rename"],
        "main": [thread, "rewind", "begin", "write", "wait for the writers", "rename", thread],
    }
    assert run.told == order[version]
    assert run.saved["optimizer_path"] == (str(tmp_path / "policy" / "optimizer") if save_optimizer else None)
    assert run.saved["weights_path"] == str(tmp_path / "policy" / "weights")
    assert run.saved["renamed"] == tmp_path


def test_an_engine_that_cannot_be_put_to_sleep_ends_the_attempt_without_a_save(tmp_path):
    run = StoppedRun(tmp_path, asleep=False)
    with pytest.raises(ProcessLostError, match="after step 6 is not saved; resume=auto continues from step 4"):
        save_between_steps(run.parts, LEFT, None)
    assert run.told == []


# -- stalls and losses -------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """launched(set-up, training): the exit code of a launch with these two functions."""

    def launch(set_up, run_loop=lambda *_: False, **settings):
        monkeypatch.setitem(sys.modules, LOOP, SimpleNamespace(MasterConfig=SimpleNamespace))
        monkeypatch.setattr(launch_module.rulebook, "refuse", lambda *_: None)
        monkeypatch.setattr(launch_module, "check_environments", lambda _: None)
        monkeypatch.setattr(launch_module, "_set_up", set_up)
        monkeypatch.setattr(launch_module, "run_loop", run_loop)
        config = {"run_dir": str(tmp_path / "run"), "grpo": {"max_num_steps": 3, "num_prompts_per_step": 4}, **settings}
        codes = []
        return run_guarded(lambda: codes.append(launch_module.train(config))) or codes[0]

    return launch


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_set_up_ends_it_at_once_and_the_run_can_be_continued(tmp_path, launched, number):
    def set_up(*_):
        try:
            os.kill(os.getpid(), number)
            time.sleep(PATIENCE)
        except Exception:  # noqa: BLE001 - as NeMo-RL catches errors
            pytest.fail("NeMo-RL would go on after an error that it catches")

    before = signal.signal(number, signal.SIG_DFL)  # tests under nohup ignore SIGHUP, and so would the run
    assert launched(set_up) == EXIT_STOPPED
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"
    assert signal.signal(number, before) == signal.SIG_DFL


def test_a_resume_in_another_layout_is_allowed_and_recorded_and_another_model_is_refused(tmp_path, launched, caplog):
    def launch(layout, **policy):
        parts = {
            "save_state": {}, "dataloader": Loader(), "checkpointer": Saved(tmp_path / "checkpoints", None),
            "master_config": {"checkpointing": {"enabled": True}},
        }  # fmt: skip
        settings = {"policy": {"model_name": "a", **layout, **policy}, "resume": "auto"}
        return launched(lambda *_: parts, **settings)

    wide = {"train_micro_batch_size": 8, "sequence_packing": {"train_mb_tokens": 8192}}
    narrow = {"train_micro_batch_size": 2, "sequence_packing": {"train_mb_tokens": 2048}, "data_parallel_size": 4}
    assert launch(wide) == EXIT_DONE
    assert launch(narrow) == EXIT_DONE
    assert "up to rounding" in caplog.text
    [line] = read_lines(tmp_path / "run" / "config_changes.jsonl")
    assert line["changed"]["policy.train_micro_batch_size"] == [8, 2]
    assert line["changed"]["policy.sequence_packing.train_mb_tokens"] == [8192, 2048]
    assert line["changed"]["policy.data_parallel_size"] == [None, 4]
    assert launch(narrow, model_name="b") == EXIT_USER_ERROR


@pytest.mark.parametrize(
    ("error", "code"), [(None, EXIT_DONE), ("stopped", EXIT_STOPPED), (StallError("it hangs"), EXIT_STALLED)]
)
@pytest.mark.parametrize("one_object", [False, True], ids=["engine and learner", "Megatron for both"])
def test_workers_are_shut_down_whatever_ends_the_run(tmp_path, launched, error, code, one_object):
    """NeMo-RL's own clean-up at exit starts Ray again and may hang."""
    ended = []

    def part(name):
        def shutdown():
            ended.append(name)
            raise RuntimeError("Ray is gone")

        return SimpleNamespace(shutdown=shutdown)

    def trained(*_):
        if isinstance(error, StallError):
            raise error
        return error == "stopped"

    engine = part("engine")
    parts = {
        "policy_generation": engine,
        "policy": engine if one_object else part("learner"),
        "save_state": {},
        "dataloader": Loader(),
        "checkpointer": Saved(tmp_path / "checkpoints", None),
        "master_config": {"checkpointing": {"enabled": True}},
    }
    assert launched(lambda *_: parts, trained) == code
    assert ended == (["engine"] if one_object else ["engine", "learner"])


def source_of(rollout):
    """An AsyncSource over one response of this rollout."""
    call = SimpleNamespace(policy_generation=None, arguments=dict)
    source = AsyncSource(call, SimpleNamespace(state=lambda _: {}, logs=[[]]), rollout, 8)
    source.submit(SimpleNamespace(response_id_N=np.arange(1), prompt_N=np.zeros(1, int)))
    return source


def test_an_engine_that_answers_nothing_is_a_stall_and_is_not_waited_for(monkeypatch):
    closed, in_time = threading.Event(), []

    async def deaf(**_):
        in_time.append(closed.wait(PATIENCE / 4))  # not even the event loop is free

    monkeypatch.setattr("nemo_ada.nemo.rollouts.requests.AsyncSource.patience", 0.2)
    source = source_of(deaf)
    with pytest.raises(StallError, match=r"no response has finished for 0 s, 1 are running"):
        source.poll()
    source.close()
    closed.set()
    source._thread.join()
    assert in_time == [True], "close() returned before the engine did"


@pytest.mark.parametrize(("answers", "complete"), [(1, False), (2, True)])
def test_an_engine_error_in_the_last_turn_is_no_wrong_answer(answers, complete):
    """NeMo-RL counts a turn before it generates, so the maximum of turns is reached whatever came of the last one."""

    async def rollout(**_):
        turns = [
            {"role": "assistant", "token_ids": torch.ones(3), "generation_logprobs": torch.zeros(3), "content": "a"},
            {"role": "environment", "token_ids": torch.ones(1), "content": "go on"},
        ]
        state = {"message_log": turns * answers, "total_reward": torch.tensor(0.0)}
        return state, {"turn_count": 2, "terminated": False, "truncated": False, "max_turns_reached": True}

    source = source_of(rollout)
    assert (source.poll().failures == {}) == source.response(0).complete == complete
    source.close()


def of_ray(name, text="it happened"):
    """Ray's error of a name, as the cause of an error of the loop."""
    kind = getattr(pytest.importorskip("ray").exceptions, name)
    failed = RuntimeError("the rollout broke")
    failed.__cause__ = kind(text) if name in ("OutOfMemoryError", "NodeDiedError", "RaySystemError") else kind()
    return failed


@pytest.mark.parametrize(
    ("cause", "code", "state"),
    [
        (lambda: KeyError("a defect"), EXIT_FAILED, "failed"),
        (lambda: RuntimeError("PolicyWorker: CUDA out of memory"), EXIT_FAILED, "failed"),
        (lambda: FailedResponsesError("9 of 10 responses have no label"), EXIT_FAILED, "failed"),
        (lambda: OSError(errno.ENOSPC, "No space left on device"), EXIT_FAILED, "failed"),
        (lambda: StallError("no response has finished for 3600 s"), EXIT_STALLED, "interrupted"),
        (lambda: of_ray("ActorDiedError"), EXIT_LOST, "interrupted"),
        (lambda: of_ray("WorkerCrashedError"), EXIT_LOST, "interrupted"),
        (lambda: of_ray("OutOfMemoryError"), EXIT_LOST, "interrupted"),
        (lambda: of_ray("NodeDiedError"), EXIT_LOST, "interrupted"),
        (lambda: of_ray("LocalRayletDiedError"), EXIT_LOST, "interrupted"),
        (lambda: of_ray("RaySystemError"), EXIT_LOST, "interrupted"),
    ],
    ids=["defect", "memory", "labels", "disk", "stall", "actor", "worker", "node's memory", "node", "raylet", "head"],
)
def test_an_error_ends_with_the_code_of_its_cause(tmp_path, launched, cause, code, state):
    def set_up(*_):
        assert json.loads((tmp_path / "run" / "heartbeat").read_text())["phase"] == "set-up"
        raise cause()

    assert launched(set_up) == code
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == state


def test_a_stop_without_checkpoints_does_not_continue_a_chain(tmp_path, launched):
    parts = {
        "save_state": {}, "dataloader": Loader(), "checkpointer": Saved(tmp_path / "checkpoints", None),
        "master_config": {"checkpointing": {"enabled": False}},
    }  # fmt: skip

    def stopped(_loop, _parts, _control, progress):
        progress.reason = "signal SIGTERM"
        return True

    assert launched(lambda *_: parts, stopped) == EXIT_FAILED


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "env", "section", "message"),
    [
        ({"use_multiple_dataloader": True}, {}, {}, "data.use_multiple_dataloader=true"),
        ({"default": {"env_name": "ada_math"}}, {}, {}, "ada_math has no section env.ada_math"),
        ({"validation": [{"env_name": "math"}, {"env_name": "ada_math"}]}, {"ada_math": {}}, None, "can take"),
        ({"train": {"env_name": "ada_math"}, "validation": None}, {"ada_math": {"workers": 2}}, {}, None),
        ({"default": {"env_name": "math"}}, {"math": {}}, None, None),
        ({"default": {"env_name": "math"}}, {}, None, "math has no section env.math"),
    ],
)
def test_data_that_cannot_work_is_refused_before_anything_starts(data, env, section, message):
    env = {"math": {}, **env} if data.get("validation") else env
    refused(message, refuse_setup, {"data": data, "env": env, "reinforce_ada": section})


def refuse_setup(config):
    """Raise what those rules call an error that need neither lengths nor a model."""
    values = Values(config)
    chosen = (setup.check_prompt_batches, setup.check_environments, setup.check_verdicts, setup.check_saves)
    rulebook.raise_errors(finding for rule in chosen for finding in rule(values))


OWN_REWARD = """
import ray

class Plain: ...

@ray.remote
class Mine: ...
"""


@pytest.mark.nemo_rl
@pytest.mark.parametrize(
    ("name", "section", "message"),
    [
        ("mine", {"class": "own_reward.Mine"}, None),
        ("mine", {}, "NeMo-RL has no such environment; choices: ada_math, code"),
        ("ada_maths", None, "env_name=ada_maths: NeMo-RL has no such environment"),
        ("math", {"class": "own_reward.Mine"}, "NeMo-RL has an environment math; take another name"),
        ("mine", {"class": "own_reward.Plain"}, "is no Ray actor class; put @ray.remote in front of it"),
        ("mine", {"class": "own_reward.Other"}, "has no such name; it has Plain, Mine"),
        ("mine", {"class": "own_rewards.Mine"}, "there is no module own_rewards"),
    ],
)
def test_an_environment_is_known_or_named_by_its_class(name, section, message, tmp_path, monkeypatch, harness):
    utils = importlib.import_module("nemo_rl.environments.utils")
    monkeypatch.setattr(utils, "ENV_REGISTRY", dict(utils.ENV_REGISTRY))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_reward.py").write_text(OWN_REWARD)
    env = {} if section is None else {name: section}
    config = {"data": {"default": {"env_name": name}, "train": {}, "validation": None}, "env": env}
    for _ in range(2):  # a second run in the same process
        refused(message, check_environments, config)


@pytest.mark.nemo_rl
@pytest.mark.parametrize("switch", [False, True], ids=["a section", "its switch"])
def test_what_all_processes_need_is_set_by_nemo_rls_own_functions_where_it_has_them(monkeypatch, harness, switch):
    """Newer examples call them before Ray starts. One of them takes the section, and in a later file its switch."""
    import nemo_rl.data_plane.factory as factory
    import nemo_rl.models.generation as generation

    told = []
    functions = {False: lambda fleet_health: told.append(fleet_health), True: lambda enabled: told.append(enabled)}
    health = {"enabled": True, "failures": 3}
    config = Values({"data_plane": {"enabled": False}, "async_rl": {"generation_fleet_health": health}})
    configure_processes(config)
    monkeypatch.setattr(factory, "maybe_configure_data_plane_env", told.append, raising=False)
    monkeypatch.setattr(generation, "maybe_configure_engine_reaping_env", functions[switch], raising=False)
    configure_processes(Values({}))
    assert told == []
    configure_processes(config)
    assert told == [{"enabled": False}, True if switch else health]


@pytest.mark.nemo_rl
def test_environments_end_with_the_run_and_one_that_cannot_is_killed(harness, tmp_path):
    ray = pytest.importorskip("ray")

    class Closing:
        """An environment that notes its end, or cannot end."""

        def __init__(self, path, fails=False):
            self.path, self.fails = path, fails

        def shutdown(self):
            if self.fails:
                raise RuntimeError("no")
            self.path.touch()

        def ready(self):
            return True

    actor = ray.remote(num_cpus=0)(Closing)
    made = {name: actor.remote(tmp_path / name, name == "stuck") for name in ("math", "stuck")}
    ray.get([one.ready.remote() for one in made.values()])
    end_environments(made)
    assert (tmp_path / "math").exists() and not (tmp_path / "stuck").exists()
    answers = (ray.get(made["stuck"].ready.remote()) for _ in itertools.count())  # Ray kills beside its answers
    with pytest.raises(ray.exceptions.RayActorError):
        all(answers)


@pytest.mark.parametrize("megatron", [True, False])
@pytest.mark.parametrize("cards", [None, "9.0"])
def test_megatron_needs_the_cards_compute_capability(monkeypatch, megatron, cards):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if cards is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", cards)
    message = "TORCH_CUDA_ARCH_LIST is not set" if megatron and cards is None else None
    refused(message, check_architectures, {"policy": {"megatron_cfg": {"enabled": megatron}}})


@pytest.mark.parametrize(
    ("dtensor", "save_format", "message"),
    [
        ({"enabled": True, "_v2": False}, "safetensors", "model_save_format=safetensors"),
        ({"enabled": True}, "torch_save", "model_save_format=torch_save"),
        ({"enabled": True, "_v2": True}, "safetensors", None),
        ({"enabled": True, "_v2": False}, None, None),
    ],
)
def test_a_format_that_would_fail_at_the_first_save_is_refused(dtensor, save_format, message):
    saves = {"enabled": True, "model_save_format": save_format}
    refused(message, refuse_setup, {"policy": {"dtensor_cfg": dtensor}, "checkpointing": saves})


def refused(message, check, *arguments, **options):
    """The check raises a UserError with these words, or (None) nothing."""
    if message is None:
        check(*arguments, **options)
        return
    with pytest.raises(UserError) as error:
        check(*arguments, **options)
    assert message in str(error.value)


class Saved:
    """A checkpoint manager with one checkpoint, or none. optimizer: NeMo-RL finds the optimizer's state in it."""

    def __init__(self, folder, config, optimizer=True, save_optimizer=True):
        self.checkpoint_dir, self.save_optimizer, self._optimizer = folder, save_optimizer, optimizer
        if config is not None:
            (folder / "step_4").mkdir(parents=True)
            (folder / "step_4" / "config.yaml").write_text(yaml.safe_dump(config))

    def get_resume_paths(self, newest):
        return f"{newest}/weights", f"{newest}/optimizer" if self._optimizer else None

    def get_latest_checkpoint_path(self):
        return max(map(str, self.checkpoint_dir.glob("step_*")), default=None)


MADE_WITH = {
    "grpo": {"max_num_steps": 4, "seed": 7},
    "policy": {"model_name": "a", "megatron_cfg": {"train_iters": 4}},
    "logger": {"log_dir": "exp_001"},
    "loss_fn": {"ratio_clip_max": 0.28},
    "data": {"train": [{"dataset_name": "ResponseDataset", "data_path": "a.jsonl"}]},  # YAML sorts its keys
}


def changed(**sections):
    return {name: section | sections.get(name, {}) for name, section in MADE_WITH.items()}


LONGER = changed(grpo={"max_num_steps": 9}, logger={"log_dir": "exp_002"}, policy={"megatron_cfg": {"train_iters": 9}})
OTHER_LAYOUT = {
    "cluster": {"num_nodes": 2, "gpus_per_node": 8},
    **changed(
        policy={
            "megatron_cfg": {"train_iters": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
            "sequence_packing": {"train_mb_tokens": 4096, "logprob_mb_tokens": 8192},
            "generation": {"vllm_cfg": {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.5}},
        }
    ),
}
OTHER = changed(policy={"model_name": "b"}, loss_fn={"ratio_clip_max": 0.2}, grpo={"num_prompts_per_step": 8})
DIFFERENCE = 'grpo.num_prompts_per_step: None -> 8, loss_fn.ratio_clip_max: 0.28 -> 0.2, policy.model_name: "a" -> "b"'


@pytest.mark.parametrize(
    ("saved", "config", "resume", "message"),
    [
        ({}, MADE_WITH, True, None),
        ({}, LONGER, True, None),
        ({}, changed(policy={"train_micro_batch_size": 1}), True, None),
        ({}, OTHER_LAYOUT, True, None),
        ({}, OTHER, True, f"step_4 was made with another configuration ({DIFFERENCE})"),
        ({}, MADE_WITH, False, "already holds step_4; set resume=auto"),
        ({"optimizer": False}, MADE_WITH, True, "step_4: NeMo-RL finds no optimizer state"),
        ({"optimizer": False, "save_optimizer": False}, MADE_WITH, True, None),
    ],
    ids=[
        "the same",
        "longer",
        "less memory",
        "another layout",
        "another",
        "unasked",
        "optimizer lost",
        "optimizer unwanted",
    ],
)
def test_only_a_whole_checkpoint_of_the_same_configuration_is_continued(tmp_path, saved, config, resume, message):
    """Without the optimizer's state the learning rate would start its warm-up anew, with a warning only."""
    refused(message, check_checkpoint, Saved(tmp_path, MADE_WITH, **saved), config, resume=resume)
    check_checkpoint(Saved(tmp_path / "empty", None), MADE_WITH, resume=False)


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path):
    saved = Saved(tmp_path, MADE_WITH)
    (tmp_path / "tmp_step_5" / "policy").mkdir(parents=True)
    remove_abandoned(saved)
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
    remove_abandoned(Saved(tmp_path / "none_yet", None))


def test_a_continued_run_keeps_its_tracking_id_and_a_chosen_one_is_left_alone(tmp_path):
    chosen = {"wandb_enabled": True, "wandb": {"project": "p", "id": "mine"}}
    off = {"wandb_enabled": False, "wandb": {}}
    for logger in (chosen, off):
        before = json.dumps(logger)
        continue_tracking(logger, tmp_path)
        assert json.dumps(logger) == before and not list(tmp_path.iterdir())
    first, second = ({"wandb_enabled": True, "wandb": {"project": "p"}} for _ in range(2))
    continue_tracking(first, tmp_path)
    continue_tracking(second, tmp_path)
    assert first == second and first["wandb"]["resume"] == "allow" and len(first["wandb"]["id"]) == 8
    model = SimpleNamespace(wandb_enabled=True, wandb=SimpleNamespace(project="p"))  # as in v0.8.0
    continue_tracking(model, tmp_path)
    assert vars(model.wandb) == first["wandb"]


DYNAMIC = {"policy": {"dynamic_batching": {"enabled": True}}}
PACKED = {"policy": {"sequence_packing": {"enabled": True}}}


@pytest.mark.parametrize(
    ("config", "where", "key"),
    [
        ({"policy": {}}, "MegatronPolicyWorker.train()", "policy.train_micro_batch_size"),
        (PACKED, "MegatronPolicyWorker.train()", "policy.sequence_packing.train_mb_tokens"),
        (PACKED, "DTensorPolicyWorker.get_reference_policy_logprobs()", "policy.sequence_packing.logprob_mb_tokens"),
        (PACKED, "VllmGenerationWorker.generate()", "policy.generation.vllm_cfg.gpu_memory_utilization"),
        (
            {"policy": {"dynamic_batching": {"enabled": True}}},
            "Worker.train()",
            "policy.dynamic_batching.train_mb_tokens",
        ),
    ],
)
def test_running_out_of_memory_names_a_setting_that_a_resume_may_change(config, where, key):
    error = RuntimeError(f"ray::{where} torch.OutOfMemoryError: CUDA out of memory")
    assert f"lower {key}," in find_key_to_lower(error, find_memory_keys(config))
    assert is_of_class(key, LAYOUT) or is_of_class(key, VOLATILE)
