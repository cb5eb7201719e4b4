"""metrics.jsonl and evaluations.jsonl of a NeMo-RL run, from what its loop logs piece by piece; and prompt features.

1. A step is one line, with the names and phases that report and plan read; an evaluation is a line of its own.
2. Totals go on over a restart; records after the checkpoint are made again.
3. Several rollout calls of a step (DAPO's filtering) are added up; what is no number is left out.
4. Features tell prompts apart by their tokens.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nemo_ada.core.metrics import add_prefix_to_lists, count_rates
from nemo_ada.lab.plan.history import History
from nemo_ada.lab.report.run import Run
from nemo_ada.nemo.features import WIDTH, compute_prompt_features
from nemo_ada.nemo.launch.records import Records
from nemo_ada.run.folder import RunDir, read_lines

ROWS = 16
HISTOGRAM = add_prefix_to_lists({"pass_rate_histogram": count_rates(np.array([0.0, 0.5, 0.5, 1.0]))})
TIMES = {
    "total_step_time": 10.0,
    "generation": 4.0,
    "prepare_for_generation/total": 1.0,
    "policy_training": 2.0,
    "checkpointing": 0.5,
}


def records(folder, after=0, **more):
    return Records(RunDir(folder), ROWS, lambda: HISTOGRAM | more, after)


def rollout(drawn):
    return {
        "ada/samples_drawn": drawn,
        "ada/tokens_drawn": 10 * drawn,
        "ada/prompts_drawn": 4,
        "ada/engine_steps_at_least": 30,
        "ada/live_rows": 12,
        "ada/pass_rate": 0.5,
        "ada/zero_signal_groups_if_grpo": 0.25,
        "mean_gen_tokens_per_sample": 10.0,
    }


def log_step(target, step, *drawn, accuracy=None):
    """In grpo_train's order (v0.7.0)."""
    for count in drawn:
        target.log_metrics(rollout(count), step, prefix="train")
    if accuracy is not None:
        target.log_metrics({"total_validation_time": 1.5}, step, prefix="timing/validation")
        target.log_metrics(validation(accuracy), step, prefix="validation")
    target.log_metrics({"gpu": 3.0}, 12, prefix="ray", step_metric="ray/ray_step")
    train = {"loss": np.float32(0.25), "grad_norm": torch.tensor(2.0), **rollout(drawn[-1])}
    target.log_metrics({**train, "per_worker": {0: 1}, "lengths": [1, 2], "name": "x"}, step, prefix="train")
    target.log_metrics({"samples_per_sec": 3}, step, prefix="performance")
    target.log_metrics(TIMES, step, prefix="timing/train", step_finished=True)


def validation(accuracy):
    return {"accuracy": accuracy, "avg_length": 7.0, "ada/without_label": 1.0}


def test_a_step_is_one_line_with_phases_that_add_up(tmp_path):
    target = records(tmp_path)
    target.log_metrics({"total_setup_time_s": 9.0}, 0, prefix="timing/setup")
    log_step(target, 1, 40)
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["step"] == 1
    assert line["train/loss"] == 0.25 and line["train/grad_norm"] == 2.0
    assert line["ada/samples_drawn"] == 40 and line.items() >= HISTOGRAM.items()
    assert line["performance/samples_per_sec"] == 3 and line["engine_steps"] == 30
    assert (line["time/sampling"], line["time/refit"], line["time/update"]) == (4.0, 1.0, 4.5)
    assert line["time/step"] == 9.5 and line["time/save"] == 0.5 and line["timing/policy_training"] == 2.0
    assert line["total/responses"] == 40 and line["total/tokens"] == 400
    assert line["total/rows"] == ROWS and line["total/live_rows"] == 12 and line["total/seconds"] == 9.5
    assert not {"train/per_worker", "train/lengths", "train/name", "ray/gpu", "train/ada/pass_rate"} & line.keys()


def test_evaluations_have_their_own_line_and_the_step_does_not_pay_for_them(tmp_path):
    target = records(tmp_path)
    target.log_metrics(validation(0.1), 0, prefix="validation")
    target.log_metrics({"total_validation_time": 2.0}, 0, prefix="timing/validation")
    log_step(target, 1, 40, accuracy=0.2)
    log_step(target, 2, 40)
    start, first = read_lines(tmp_path / "evaluations.jsonl")
    assert (start["step"], start["val/accuracy"], start["total/responses"]) == (0, 0.1, 0)
    assert (first["step"], first["val/accuracy"], first["total/responses"]) == (1, 0.2, 40)
    assert first["val/response_length"] == 7.0 and first["val/without_label"] == 1.0
    assert first["time/evaluation"] == 1.5
    steps = read_lines(tmp_path / "metrics.jsonl")
    assert [line["time/update"] for line in steps] == [3.0, 4.5]


def test_a_continued_run_makes_later_records_again_and_adds_to_its_totals(tmp_path):
    target = records(tmp_path)
    for step in (1, 2, 3):
        log_step(target, step, 40, accuracy=0.5)
    log_step(records(tmp_path, after=2), 3, 20)
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["total/responses"] for line in lines] == [40, 80, 100]
    assert [line["step"] for line in read_lines(tmp_path / "evaluations.jsonl")] == [1, 2]


def test_a_run_that_never_finished_a_step_begins_its_records_anew(tmp_path):
    for _ in range(2):
        target = records(tmp_path)
        target.log_metrics({"total_validation_time": 2.0}, 0, prefix="timing/validation")
        target.log_metrics(validation(0.1), 0, prefix="validation")
    assert len(read_lines(tmp_path / "evaluations.jsonl")) == 1


def test_all_rollout_calls_of_a_step_count(tmp_path):
    log_step(records(tmp_path, **{"ada/live_rows": 14.0}), 1, 40, 24, 8)  # the last call alone had 12
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["ada/live_rows"] == line["total/live_rows"] == 14
    assert (line["ada/samples_drawn"], line["ada/tokens_drawn"], line["ada/prompts_drawn"]) == (72, 720, 12)
    assert line["engine_steps"] == 90
    assert line["total/responses"] == 72


@pytest.mark.parametrize(("value", "told"), [(1.049, False), (1.051, True), (float("nan"), True)])
def test_a_rollout_that_disagrees_with_the_learner_is_told(tmp_path, caplog, value, told):
    target = records(tmp_path)
    target.log_metrics({"token_mult_prob_error": value}, 7, prefix="train")
    log_step(target, 7, 40)
    assert ("step 7: token_mult_prob_error" in caplog.text and "BF16" in caplog.text) == told
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize(("newest", "told"), [(1.0, False), (1.2, True), (None, False)])
def test_in_asynchronous_training_only_responses_of_the_newest_weights_must_agree(tmp_path, caplog, newest, told):
    target = records(tmp_path)
    numbers = {"token_mult_prob_error": 5.2, "ada/pools_mixed_versions": 0.5}
    target.log_metrics(numbers | ({} if newest is None else {"ada/newest_prob_error": newest}), 7, prefix="train")
    log_step(target, 7, 40)
    assert ("step 7" in caplog.text) == told


def test_the_logger_is_told_only_within_the_block(tmp_path):
    logger: Any = SimpleNamespace(loggers=[])
    target = records(tmp_path)

    def interrupted():
        with target.log_from(logger):
            assert logger.loggers == [target]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert logger.loggers == []


def test_report_and_plan_read_them(tmp_path):
    RunDir(tmp_path).open({"reinforce_ada": {"preset": "grpo"}}, resume=False)
    target = records(tmp_path)
    for step in range(1, 5):
        log_step(target, step, 40, accuracy=0.5)
    checkpoint = tmp_path / "checkpoints" / "step_4" / "reinforce_ada.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text(json.dumps({"sampler": {"latency": {"lengths": [3, 4]}}}))
    run = Run.read(tmp_path)
    assert run.notes == () and len(run.steps) == len(run.evaluations) == 4
    assert run.curve("total/responses", "val/accuracy")[0].tolist() == [40, 80, 120, 160]
    history = History.read(tmp_path)
    assert (history.sampling_S + history.update_S + history.refit_S).tolist() == [8.0] * 4 and history.evaluation == 1.5
    assert history.lengths_L.tolist() == [3, 4]


# -- 4. features -------------------------------------------------------------------------------------------------------


def log_of(*parts):
    return [{"role": "user", "token_ids": torch.tensor(part, dtype=torch.int64)} for part in parts]


def test_features_depend_on_the_tokens_only():
    found = compute_prompt_features([log_of([5, 6, 7]), log_of([5], [6, 7]), log_of([5, 6, 8]), log_of([])])
    assert found.shape == (4, WIDTH) and np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    assert not found[3].any()
