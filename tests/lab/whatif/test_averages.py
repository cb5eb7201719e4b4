"""Curves of a run say what its rollouts would have said: every form is read, and strangers' runs come out right."""

from __future__ import annotations

import json
import math
from math import comb

import numpy as np
import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import Estimate
from nemo_ada.lab.whatif.answer import Options, answer, read_log
from nemo_ada.lab.whatif.averages import Averages
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, compute_binomial, compute_no_spread
from nemo_ada.lab.whatif.render import write_sentences

STRANGERS = {
    "IMJONEZZ/UnslothGRPO, outputs/checkpoint-250/trainer_state.json": (78, 34, 31, 22, 26, 23, 36),
}
"""Public run -> its groups with 0, 1, ... right responses, which we counted from `rewards/correctness_reward_func`."""


def curve(counts, small=None):
    """The averages of a run with so many groups of each number of right responses, one group per step."""
    n = len(counts) - 1
    pos_T = np.repeat(np.arange(n + 1), counts)
    zero_T = np.array([equal(int(pos), n, small or n) for pos in pos_T])
    return Averages(pos_T / n, zero_T, np.full(len(pos_T), math.nan))


def equal(pos, n, small):
    """Share of the subsets of a group that have equal labels."""
    return (comb(pos, small) + comb(n - pos, small)) / comb(n, small)


@pytest.mark.parametrize("counts", STRANGERS.values(), ids=STRANGERS)
def test_two_averages_predict_what_groups_of_another_size_show(counts):
    n = len(counts) - 1
    seen = {size: float(np.mean(curve(counts, size).zero_T)) for size in (2, 3, n)}
    for logged, wanted in ((n, 2), (n, 3), (3, n)):
        found = curve(counts, logged).fit_mixture(logged).share(compute_no_spread(wanted))
        assert found.low <= seen[wanted] <= found.high
        assert found.value == pytest.approx(seen[wanted], abs=0.01)
        assert found.high - found.low < 0.3
    mixture = curve(counts).fit_mixture(n)
    for pos, count in enumerate(counts):
        figure = mixture.share(compute_binomial(np.array([pos]), np.array([n]))[0])
        assert figure.low <= count / sum(counts) <= figure.high


@pytest.mark.parametrize(("mean", "zero"), [(0.4, 0.5), (0.02, 0.93), (0.97, 0.9), (0.5, 1.0), (0.5, 0.0079)])
def test_the_weights_have_the_logged_means(mean, zero):
    values = np.array([RATE_J, compute_no_spread(8)])
    mixture = Mixture.from_moments(values, [Estimate(mean, mean, mean), Estimate(zero, zero, zero)])
    assert values @ mixture.weight_J == pytest.approx([mean, zero], abs=0.003)
    figure = mixture.mean((1.0 - RATE_J) ** 32)
    assert figure.low <= figure.value <= figure.high


STEPS = [
    {"step": t, "reward": 0.25 + 0.01 * (t % 3), "reward_std": 0.2, "frac_reward_zero_std": 0.5 + 0.05 * (t % 4)}
    for t in range(1, 21)
]


def of(tmp_path, name, text):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def trl_state(tmp_path):
    of(tmp_path, "checkpoint-9/trainer_state.json", json.dumps({"log_history": STEPS[:5]}))
    of(tmp_path, "checkpoint-20/trainer_state.json", json.dumps({"log_history": [*STEPS, {"train_runtime": 3.0}]}))
    return [tmp_path]


def metrics_lines(tmp_path):
    return [
        of(tmp_path, "logging.jsonl", "\n".join(json.dumps({f"train/{k}": v for k, v in row.items()}) for row in STEPS))
    ]


def charts(tmp_path):
    files = []
    for name in ("reward", "frac_reward_zero_std"):
        head = f'"Step","lucky-7 - train/{name}","lucky-7 - train/{name}__MIN","lucky-7 - train/{name}__MAX"'
        rows = [f'"{row["step"]}","{row[name]}","0","1"' for row in STEPS]
        files.append(of(tmp_path, f"{name}.csv", "\n".join([head, *rows])))
    return files


def events(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "runs"))
    for row in STEPS:
        values = [Summary.Value(tag=f"train/{name}", simple_value=row[name]) for name in list(row)[1:]]
        writer.add_event(Event(step=row["step"], summary=Summary(value=values)))
    writer.close()
    return [tmp_path]


@pytest.mark.parametrize("form", [trl_state, metrics_lines, charts, events])
def test_the_same_curve_in_each_form_gives_the_same_averages(form, tmp_path):
    found = read_log(form(tmp_path))
    assert found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    assert found.zero_T.tolist() == pytest.approx([row["frac_reward_zero_std"] for row in STEPS])


def test_the_same_step_in_two_folders_is_of_two_runs(tmp_path):
    for folder in ("exp_001", "exp_002"):
        events(tmp_path / folder)
    with pytest.raises(UserError, match=r"another run than .*exp_001/runs: .*exp_002/runs"):
        read_log([tmp_path])


def test_two_runs_in_one_file_are_refused_and_a_resumed_one_is_read(tmp_path):
    """`tee -a` appends the second run to the log of the first."""
    lines = [json.dumps(row) for row in STEPS]
    with pytest.raises(UserError, match=r"run.jsonl holds two runs: behind step 20 follows 1 again"):
        read_log([of(tmp_path, "run.jsonl", "\n".join([*lines, *lines]))])
    resumed = read_log([of(tmp_path, "resumed.jsonl", "\n".join([*lines[:15], *lines[9:]]))])
    assert len(resumed.mean_T) == len(STEPS)


def test_a_count_of_completions_makes_no_response_of_a_step(tmp_path):
    found = read_log([of(tmp_path, "run.jsonl", "\n".join(json.dumps(row | {"completions": 64}) for row in STEPS))])
    assert isinstance(found, Averages)


def test_without_a_share_of_silent_groups_the_mean_reward_leaves_wide_bounds(tmp_path):
    """Other rewards than 0 and 1 need their values."""
    rows = [{"step": row["step"], "right": 2 * row["reward"] - 1, "loss": 0.1} for row in STEPS]
    file = of(tmp_path, "run.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="--values"):
        read_log([file], {"reward": "right"})
    found = read_log([file], {"reward": "right"}, (-1.0, 1.0))
    assert found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    report = answer(found, Options(group=8, presets=("grpo", "ada_seq_lean")))
    assert report.rows[0].zero_signal.low < 0.5 < report.rows[0].zero_signal.high
    assert "Between" in write_sentences(report)


def test_a_sum_of_rewards_needs_the_name_of_one(tmp_path):
    rows = [
        row | {"reward": row["reward"] + 0.1 * (row["step"] % 2), "rewards/right/mean": row["reward"],
               "rewards/right/std": 0.4, "rewards/form/mean": 0.1 * (row["step"] % 2), "rewards/form/std": 0.1}
        for row in STEPS
    ]  # fmt: skip
    file = of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))
    with pytest.raises(UserError, match="--column reward=rewards/right/mean"):
        read_log([file])
    found = read_log([file], {"reward": "rewards/right"})
    assert np.isnan(found.zero_T).all()
    assert any("sum of all rewards" in note for note in found.notes), "another measure than the named one"
    lines = [json.dumps({"reward": row["reward"]}) for row in STEPS]
    alone = read_log([of(tmp_path, "alone.jsonl", "\n".join(lines))])
    assert found.fit_mixture(8).share(compute_no_spread(8)) == alone.fit_mixture(8).share(compute_no_spread(8))


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [([{"step": 1, "loss": 0.1}], {}, "--column reward"), (STEPS[:2], {}, "at least 4"),
     ([row | {"reward": 1.5} for row in STEPS], {}, "--values"),
     ([row | {"frac_reward_zero_std": 35.0} for row in STEPS], {}, "frac_reward_zero_std is no share"),
     ([row | {"frac_reward_zero_std": -1.0} for row in STEPS], {}, "frac_reward_zero_std is no share"),
     (STEPS, {"zero_signal": "nosuch"}, "--column zero_signal=nosuch: no step has this metric")],
)  # fmt: skip
def test_averages_that_say_too_little_or_cannot_be_are_refused(rows, columns, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read_log([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))], columns)


@pytest.mark.parametrize("values", [(-math.inf, math.inf), (1.0, 0.0)])
def test_rewards_of_labels_that_cannot_be_are_refused(values, tmp_path):
    with pytest.raises(UserError, match="must be the larger one, and finite"):
        read_log(trl_state(tmp_path), values=values)


def test_charts_of_two_runs_are_refused(tmp_path):
    """Each file alone may be fine. Together the curve of the second run took the place of the first."""
    files = charts(tmp_path)
    other = of(tmp_path, "other.csv", files[0].read_text().replace("lucky-7", "dusty-8"))
    with pytest.raises(UserError, match=r"other.csv has another run than lucky-7: dusty-8"):
        read_log([*files, other])
    with pytest.raises(UserError, match="another run than a and b"):
        read_log([of(tmp_path, "a.csv", '"Step","a - train/reward","b - train/reward"\n"1","0.1","0.2"')])


def test_the_index_column_of_pandas_is_no_metric(tmp_path):
    """`run.history().to_csv()` writes a first column without a name. It was taken for every metric of no step."""
    lines = [",_step,train/reward", *(f"{i},{row['step']},{row['reward']}" for i, row in enumerate(STEPS))]
    found = read_log([of(tmp_path, "history.csv", "\n".join(lines))])
    assert found.mean_T.tolist() == [row["reward"] for row in STEPS]
    assert np.isnan(found.zero_T).all() and np.isnan(found.tokens_T).all()


def test_the_command_answers_in_sentences_first(tmp_path):
    path = str(trl_state(tmp_path)[0])
    done = CliRunner().invoke(app, ["whatif", path, "--group", "8"])
    assert done.exit_code == 0
    assert done.stdout.startswith("57 % of your groups")
    shares = json.loads(CliRunner().invoke(app, ["whatif", path, "--group", "8", "--json"]).stdout)
    for row in (row for row in shares["rows"] if not row["name"].startswith("ada_single")):  # it has no groups
        assert 0.0 <= row["zero_signal"]["low"] <= row["zero_signal"]["value"] <= row["zero_signal"]["high"] <= 1.0


HOSTILE = {
    "trainer_state.json": b"{", "a.csv": b'"Step","train/reward"\n"' + b"9" * 200_000 + b"\n", "b.csv": b"",
    "a.log": b"\0" * 100, "c.json": b'{"log_history": 3}', "events.out.tfevents.1": b"nothing",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_words(name, tmp_path):
    (tmp_path / name).write_bytes(HOSTILE[name])
    path = str(tmp_path / name)
    done = CliRunner().invoke(app, ["whatif", path, "--group", "8"])
    assert isinstance(done.exception, UserError), done.exception


def test_a_log_without_any_signal_gets_no_promise(tmp_path):
    """The refill was said to leave 0 % of the groups without signal, where none had any."""
    rows = [{"step": t, "reward": 0.0, "frac_reward_zero_std": 1.0} for t in range(30)]
    found = read_log([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])
    report = answer(found, Options(group=8, presets=("grpo", "dapo")))
    assert "No group had any signal" in write_sentences(report)
    assert report.rows[1].zero_signal.value > 0.9


def test_a_log_that_fits_no_labels_is_doubted_first(tmp_path):
    rows = [{"step": t, "reward": 0.02 + 0.001 * (t % 3), "frac_reward_zero_std": 0.0} for t in range(30)]
    found = read_log([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])
    assert write_sentences(answer(found, Options(group=8, presets=("grpo",)))).startswith("Do not trust")
