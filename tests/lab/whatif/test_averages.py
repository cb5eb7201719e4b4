"""Curves of a run say what its rollouts would have said: every form is read, and strangers' runs come out right."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import Options, answer
from nemo_ada.lab.whatif.averages import Averages, read_averages
from nemo_ada.lab.whatif.logs import read_logs
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, binomial, no_spread
from nemo_ada.lab.whatif.render import sentences

STRANGERS = {
    "IMJONEZZ/UnslothGRPO, outputs/checkpoint-250/trainer_state.json": (78, 34, 31, 22, 26, 23, 36),
}
"""Public run -> its groups with 0, 1, ... right responses, which we counted from `rewards/correctness_reward_func`."""


def curve(counts, small=None):
    """The averages of a run with so many groups of each number of right responses, one group per step."""
    n = len(counts) - 1
    pos_T = np.repeat(np.arange(n + 1), counts)
    zero_T = np.array([equal(int(pos), n, small or n) for pos in pos_T])
    return Averages(("test",), pos_T / n, zero_T, False, np.full(len(pos_T), math.nan), ())


def equal(pos, n, small):
    """Share of the subsets of a group that have equal labels."""
    return (comb(pos, small) + comb(n - pos, small)) / comb(n, small)


@pytest.mark.parametrize("counts", STRANGERS.values(), ids=STRANGERS)
def test_two_averages_predict_what_groups_of_another_size_show(counts):
    n = len(counts) - 1
    seen = {size: float(np.mean(curve(counts, size).zero_T)) for size in (2, 3, n)}
    for logged, wanted in ((n, 2), (n, 3), (3, n)):
        found = curve(counts, logged).mixture(logged).share(no_spread(wanted))
        assert found.low <= seen[wanted] <= found.high
        assert found.value == pytest.approx(seen[wanted], abs=0.01)
        assert found.high - found.low < 0.3
    mixture = curve(counts).mixture(n)
    for pos, count in enumerate(counts):
        figure = mixture.share(binomial(np.array([pos]), np.array([n]))[0])
        assert figure.low <= count / sum(counts) <= figure.high


@pytest.mark.parametrize("counts", STRANGERS.values(), ids=STRANGERS)
def test_one_group_per_step_is_seen_in_the_means(counts):
    known = curve(counts)
    alone = replace(known, zero_T=np.full(len(known.mean_T), math.nan), others=True)
    assert alone.with_groups(6).zero_T.tolist() == known.zero_T.tolist()
    assert not alone.with_groups(6).others
    assert np.isnan(alone.with_groups(8).zero_T).all(), "these means are no multiples of an eighth"
    pairs = replace(alone, mean_T=(known.mean_T[::2] + known.mean_T[::-2]) / 2)
    assert np.isnan(pairs.with_groups(6).zero_T).all()


@pytest.mark.parametrize(("mean", "zero"), [(0.4, 0.5), (0.02, 0.93), (0.97, 0.9), (0.5, 1.0), (0.5, 0.0079)])
def test_the_weights_have_the_logged_means(mean, zero):
    values = np.array([RATE_J, no_spread(8)])
    mixture = Mixture.from_moments(values, np.array([mean, zero]), np.array([mean, zero]), np.array([mean, zero]))
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


def trl_console(tmp_path):
    lines = [
        f"  5%| | {t}/20 [00:01<?]{ {name: str(value) for name, value in row.items()} }" for t, row in enumerate(STEPS)
    ]
    return [of(tmp_path, "run.log", "Loading {'a': 1}\n" + "\n".join(lines))]


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


@pytest.mark.parametrize("form", [trl_state, trl_console, metrics_lines, charts, events])
def test_the_same_curve_in_each_form_gives_the_same_averages(form, tmp_path):
    found = read_averages(form(tmp_path))
    assert found is not None
    assert found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    assert found.zero_T.tolist() == pytest.approx([row["frac_reward_zero_std"] for row in STEPS])
    assert not found.others


NEMO_RL = """
========================= Step {step}/20 =========================
▶ Generating responses for batch of size 64...
📊 Training Results:
  • Loss: 0.0123
  • Generation KL Error: 0.0004
  • Avg Reward: {reward:.4f}
  • Mean Generation Length: 312.5000

⏱️  Timing:
  • Total step time: 56.06s
  • policy_training: 18.20s (32.5%)
  • generation: 6.20s (11.1%)
"""
"""As `nemo_rl/algorithms/grpo.py` of v0.7.0 prints it."""


def nemo_rl_console(tmp_path, encoding="utf-8"):
    file = tmp_path / "ray-driver.log"
    file.write_bytes("".join(NEMO_RL.format(**row) for row in STEPS).encode(encoding))
    return [file]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_nemo_rl_prints_is_read(encoding, tmp_path):
    found = read_averages(nemo_rl_console(tmp_path, encoding))
    assert found is not None and found.forms == ("console",)
    assert found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    assert set(found.tokens_T) == {312.5}


def nemo_rl_events(tmp_path, rate_T, loo, group=8, prompts=64, folder="tensorboard"):
    """Event files of a run whose prompts have these pass rates, with NeMo-RL's shares of baselines."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    rng, writer, equal = np.random.default_rng(3), EventFileWriter(str(tmp_path / folder)), []
    for step, rates in enumerate(rate_T, start=1):
        reward_PI = (rng.random((prompts, group)) < rng.choice(rates, prompts)[:, None]).astype(float)
        others_PI = (reward_PI.sum(axis=1, keepdims=True) - reward_PI) / (group - 1)
        baseline_PI = others_PI if loo else np.broadcast_to(reward_PI.mean(axis=1, keepdims=True), reward_PI.shape)
        equal.append(float((reward_PI.std(axis=1) == 0).mean()))
        values = {
            "train/reward": reward_PI.mean(),
            "train/baseline_reward/pct_mixed": 100 * ((baseline_PI > 0) & (baseline_PI < 1)).mean(),
        }
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(step=step, summary=summary))
    writer.close()
    return float(np.mean(equal))


@pytest.mark.parametrize("loo", [True, False])
def test_nemo_rls_share_of_baselines_bounds_the_groups_without_spread(loo, tmp_path):
    seen = nemo_rl_events(tmp_path, [[0.0, 0.1, 0.5, 0.95]] * 60, loo)
    found = read_averages([tmp_path])
    assert found is not None and found.others
    share = found.mixture(8).share(no_spread(8))
    assert share.low - 0.02 <= seen <= share.high + 0.02
    assert share.high - share.low < 0.25, "the mean reward alone would say much less"
    assert math.isnan(found.zero_signal().value), "it is no count of groups"


def test_the_events_of_two_runs_are_refused(tmp_path):
    for folder in ("exp_001/tensorboard", "exp_002/tensorboard"):
        nemo_rl_events(tmp_path, [[0.5]] * 6, True, folder=folder)
    with pytest.raises(UserError, match=r"exp_001/tensorboard and .*exp_002/tensorboard both"):
        read_averages([tmp_path])


@pytest.mark.parametrize("form", ["nemo_rl", "verl", "lines"])
def test_two_runs_in_one_file_are_refused_and_a_resumed_one_is_read(form, tmp_path):
    """`tee -a` appends the second run to the log of the first."""
    written = {
        "nemo_rl": lambda row: NEMO_RL.format(**row),
        "verl": lambda row: f"step:{row['step']} - critic/score/mean:{row['reward']} - timing_s/gen:2\n",
        "lines": lambda row: json.dumps(row) + "\n",
    }[form]
    file = of(tmp_path, "run.log", "".join(written(row) for row in [*STEPS, *STEPS]))
    with pytest.raises(UserError, match=r"run.log holds two runs: behind step 20 follows 1 again"):
        read_averages([file])
    resumed = read_averages([of(tmp_path, "resumed.log", "".join(written(row) for row in [*STEPS[:15], *STEPS[9:]]))])
    assert resumed is not None and len(resumed.mean_T) == len(STEPS)


def test_percent_in_cells_and_metrics_in_objects_are_read(tmp_path):
    lines = ["Step,lucky-7 - train/reward", *(f"{row['step']},{100 * row['reward']:.0f}%" for row in STEPS)]
    found = read_averages([of(tmp_path, "percent.csv", "\n".join(lines))])
    assert found is not None and found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    nested = [{"step": row["step"], "train": {"reward": row["reward"], "completions": 8}} for row in STEPS]
    found = read_averages([of(tmp_path, "nested.jsonl", "\n".join(map(json.dumps, nested)))])
    assert found is not None and found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    counted = [row | {"completions": 64} for row in STEPS]
    assert read_averages([of(tmp_path, "counted.jsonl", "\n".join(map(json.dumps, counted)))]) is not None


def test_one_odd_step_does_not_change_the_scale(tmp_path):
    lines = [
        f"step:{t} - critic/score/mean:{row['reward']} - critic/score/max:1.0 - "
        f"critic/score/min:{-2.0 if t == 4 else 0}"
        for t, row in enumerate(STEPS)
    ]
    found = read_averages([of(tmp_path, "verl.txt", "\n".join(lines))])
    assert found is not None and found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])


def test_what_verl_prints_is_read_with_its_own_scale(tmp_path):
    lines = [
        f"\x1b[36m(TaskRunner pid=3)\x1b[0m step:{t} - critic/score/mean:np.float64({2 * row['reward'] - 1}) - "
        "critic/score/max:1.0 - critic/score/min:-1.0 - response_length/mean:200.0 - timing_s/gen:20.0 - "
        "timing_s/step:50.0"
        for t, row in enumerate(STEPS)
    ]
    found = read_averages([of(tmp_path, "verl.txt", "\n".join(lines))])
    assert found is not None
    assert found.mean_T.tolist() == pytest.approx([row["reward"] for row in STEPS])
    assert np.isnan(found.zero_T).all()
    report = answer(found, Options(group=8, presets=("grpo", "ada_seq_lean"), prompts=8))
    assert report.rows[0].zero_signal.low < 0.5 < report.rows[0].zero_signal.high
    assert "Between" in sentences(report)


def test_a_sum_of_rewards_needs_the_name_of_one(tmp_path):
    rows = [
        row | {"reward": row["reward"] + 0.1 * (row["step"] % 2), "rewards/right/mean": row["reward"],
               "rewards/right/std": 0.4, "rewards/form/mean": 0.1 * (row["step"] % 2), "rewards/form/std": 0.1}
        for row in STEPS
    ]  # fmt: skip
    file = of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))
    with pytest.raises(UserError, match="--column reward=rewards/right/mean"):
        read_averages([file])
    found = read_averages([file], {"reward": "rewards/right"})
    assert found is not None and np.isnan(found.zero_T).all()
    assert any("sum of all rewards" in note for note in found.notes), "another measure than the named one"
    lines = [json.dumps({"reward": row["reward"]}) for row in STEPS]
    alone = read_averages([of(tmp_path, "alone.jsonl", "\n".join(lines))])
    assert alone is not None
    assert found.mixture(8).share(no_spread(8)) == alone.mixture(8).share(no_spread(8))


@pytest.mark.parametrize(
    ("rows", "words"),
    [([{"step": 1, "loss": 0.1}], "--column reward"), (STEPS[:2], "at least 4"),
     ([row | {"reward": 1.5} for row in STEPS], "--values")],
)  # fmt: skip
def test_averages_that_say_too_little_are_refused(rows, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read_averages([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])


def test_charts_of_two_runs_are_refused(tmp_path):
    with pytest.raises(UserError, match="several runs"):
        read_averages([of(tmp_path, "a.csv", '"Step","a - train/reward","b - train/reward"\n"1","0.1","0.2"')])


@pytest.mark.parametrize(("between", "point"), [(";", ","), (";", "."), ("\t", ".")])
def test_charts_that_a_spreadsheet_saved_are_read(between, point, tmp_path):
    """Excel in much of Europe writes semicolons and decimal commas. One column was found, and no metric in it."""
    lines = [f"\ufeffStep{between}lucky-7 - train/reward{between}lucky-7 - train/frac_reward_zero_std"]
    for row in STEPS:
        cells = [row["step"], row["reward"], row["frac_reward_zero_std"]]
        lines.append(between.join(str(cell).replace(".", point) for cell in cells))
    found = read_averages([of(tmp_path, "excel.csv", "\r\n".join(lines))])
    assert found is not None
    np.testing.assert_allclose(found.mean_T, [row["reward"] for row in STEPS])
    np.testing.assert_allclose(found.zero_T, [row["frac_reward_zero_std"] for row in STEPS])


def test_charts_of_two_runs_in_two_files_are_refused(tmp_path):
    """Each file alone is fine. Together the curve of the second run took the place of the first."""
    files = charts(tmp_path)
    other = of(tmp_path, "other.csv", files[0].read_text().replace("lucky-7", "dusty-8"))
    with pytest.raises(UserError, match=r"lucky-7 in .*reward.csv, dusty-8 in .*other.csv"):
        read_averages([*files, other])


def test_the_index_column_of_pandas_is_no_metric(tmp_path):
    """`run.history().to_csv()` writes a first column without a name. It was taken for every metric of no step."""
    lines = [",_step,train/reward,train/frac_reward_zero_std"]
    lines += [f"{i},{row['step']},{row['reward']},{row['frac_reward_zero_std']}" for i, row in enumerate(STEPS)]
    found, plain = read_averages([of(tmp_path, "history.csv", "\n".join(lines))]), read_averages(charts(tmp_path))
    assert found is not None and plain is not None
    assert found.mean_T.tolist() == plain.mean_T.tolist()
    assert found.zero_T.tolist() == plain.zero_T.tolist()
    assert np.isnan(found.tokens_T).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"frac_reward_zero_std": 35.0}, "35 as share of groups without spread"),
     ({"frac_reward_zero_std": -1.0}, "-1 as share of groups"),
     ({"completions/mean_length": 1e300}, "1e\\+300 as mean tokens"), ({"completions/mean_length": -5}, "-5 as mean")],
)  # fmt: skip
def test_an_average_that_cannot_be_is_refused(changed, words, tmp_path):
    rows = [row | changed for row in STEPS]
    with pytest.raises(UserError, match=words):
        read_averages([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])


def test_a_named_metric_that_is_missing_is_refused(tmp_path):
    file = of(tmp_path, "trainer_state.json", json.dumps({"log_history": STEPS}))
    with pytest.raises(UserError, match="--column zero_signal=nosuch: no step has this metric"):
        read_averages([file], {"zero_signal": "nosuch"})
    found = read_averages([file], {"zero_signal": "train/frac_reward_zero_std"})
    assert found is not None and np.isfinite(found.zero_T).all()


def test_infinite_rewards_of_labels_are_refused(tmp_path):
    file = of(tmp_path, "trainer_state.json", json.dumps({"log_history": STEPS}))
    with pytest.raises(UserError, match="finite"):
        read_averages([file], values=(-math.inf, math.inf))


def test_a_logged_share_is_not_replaced_by_single_groups_that_contradict_it(tmp_path):
    """Two groups of 4 per step have means in eighths. With --group 8 they looked like one group of 8."""
    rng = np.random.default_rng(0)
    pos_TG = rng.binomial(4, rng.beta(0.6, 1.5, (40, 2)))
    rows = [
        {"step": t, "reward": pos_G.mean() / 4, "frac_reward_zero_std": float(np.mean((pos_G == 0) | (pos_G == 4)))}
        for t, pos_G in enumerate(pos_TG)
    ]
    found = read_averages([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])
    assert found is not None
    assert found.with_groups(8) is found


def test_the_command_wants_the_group_size_and_answers_in_sentences_first(tmp_path):
    path = str(trl_state(tmp_path)[0])
    refused = CliRunner().invoke(app, ["whatif", path])
    assert isinstance(refused.exception, UserError) and "--group" in str(refused.exception)
    done = CliRunner().invoke(app, ["whatif", path, "--group", "8"])
    assert done.exit_code == 0
    assert done.stdout.startswith("57 % of your groups")
    shares = json.loads(CliRunner().invoke(app, ["whatif", path, "--group", "8", "--json"]).stdout)
    for row in (row for row in shares["rows"] if not row["name"].startswith("ada_single")):  # it has no groups
        assert 0.0 <= row["zero_signal"]["low"] <= row["zero_signal"]["value"] <= row["zero_signal"]["high"] <= 1.0


def test_rollouts_in_a_folder_say_more_than_its_curves(tmp_path):
    trl_state(tmp_path)
    of(tmp_path, "rollouts.jsonl", "".join(json.dumps({"prompt": i // 4, "reward": i % 2}) + "\n" for i in range(40)))
    assert read_averages([tmp_path]) is None


def test_groups_in_one_record_and_tables_of_wandb_are_rollouts(tmp_path):
    group = {
        "prompt": [{"role": "user", "content": "2 + 2"}],
        "rewards": [1.0, 0.0, 1.0],
        "responses": ["4", "five", "4 "],
    }
    file = of(tmp_path, "groups.jsonl", json.dumps(group) + "\n" + json.dumps(group | {"prompt": "3 + 3"}))
    assert read_averages([file]) is None
    found = read_logs([file])
    assert (found.reward_N.tolist(), len(found.names_U)) == ([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 2)
    nemo = {"token_ids": [[7, 8, 3], [7, 9, 3]], "token_loss_mask": [[0, 1, 1], [0, 1, 1]], "rewards": [1.0, 0.0],
            "sample_loss_mask": [1.0, 1.0], "content": [["2 + 2", "4"], ["2 + 2", "5"]]}  # fmt: skip
    found = read_logs([of(tmp_path, "train_data_step3.jsonl", json.dumps(nemo) + "\n")])
    assert (found.reward_N.tolist(), len(found.names_U)) == ([1.0, 0.0], 1)
    table = {
        "columns": ["step", "prompt", "completion", "right", "advantage"],
        "data": [[1, "2 + 2", "4", 1.0, 0.1]] * 3,
    }
    table["data"].append(3)  # damage
    found = read_logs([of(tmp_path, "completions.table.json", json.dumps(table))])
    assert found.reward_N.tolist() == [1.0, 1.0, 1.0]
    lines = ["prompt,reward,response", *(f"p{i // 4},{100 * (i % 2)}%,text" for i in range(8))]
    assert read_logs([of(tmp_path, "rows.csv", "\n".join(lines))]).reward_N.tolist() == [0.0, 1.0] * 4


HOSTILE = {
    "trainer_state.json": b"{", "a.csv": b'"Step","train/reward"\n"' + b"9" * 200_000 + b"\n", "b.csv": b"",
    "a.log": b"\0" * 100, "b.txt": b"{'a': " + b"[" * 10_000 + b"}", "c.json": b'{"log_history": 3}',
    "d.jsonl": b'{"loss": 1}\n{"l', "events.out.tfevents.1": b"nothing",
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
    found = read_averages([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])
    assert found is not None
    report = answer(found, Options(group=8, presets=("grpo", "dapo")))
    assert "No group had any signal" in sentences(report)
    assert report.rows[1].zero_signal.value > 0.9


def test_a_log_that_fits_no_labels_is_doubted_first(tmp_path):
    rows = [{"step": t, "reward": 0.02 + 0.001 * (t % 3), "frac_reward_zero_std": 0.0} for t in range(30)]
    found = read_averages([of(tmp_path, "trainer_state.json", json.dumps({"log_history": rows}))])
    assert found is not None
    assert sentences(answer(found, Options(group=8, presets=("grpo",)))).startswith("Do not trust")


@pytest.mark.parametrize(
    "words",
    [["status", "nowhere", "--watch", "inf"], ["plan", "nowhere", "--price", "inf"],
     ["simulate", "--objective", "--preset", "ada_est_ema", "--group", "65"]],
)  # fmt: skip
def test_an_option_without_end_is_refused(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 or "at most 64" in str(done.exception)
