"""The figures agree with closed forms and with simulation, and their bounds hold the truth."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.config.presets import load_presets
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import Options, answer, read_log
from nemo_ada.lab.whatif.forecast import REFILL_ROW, compute_by_rate
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture
from nemo_ada.lab.whatif.render import write_introduction, write_sentences
from nemo_ada.lab.whatif.rollouts import Rollouts, count_labels

FEW = Options(presets=("grpo", "ada_seq_balance", "dapo"))


def rollouts(rate_G, n, seed=0, *, prompt_G=None, step_G=None, tokens=True):
    """A log of n responses for each of these pass rates."""
    rng = np.random.default_rng(seed)
    groups = len(rate_G)
    reward_N = (rng.random(groups * n) < np.repeat(rate_G, n)).astype(np.float64)
    tokens_N = np.where(reward_N > 0, 100.0, 200.0) if tokens else np.full(groups * n, np.nan)
    prompt_G = np.arange(groups) if prompt_G is None else prompt_G
    step_G = np.arange(groups) * 4 // groups if step_G is None else step_G
    columns = {"group": np.arange(groups), "prompt": prompt_G, "step": step_G}
    frame = pd.DataFrame({name: np.repeat(value_G, n) for name, value_G in columns.items()})
    return Rollouts(frame.assign(reward=reward_N, right=np.nan, tokens=tokens_N, text=0))


def relabelled(log, reward_N):
    """The log with other rewards."""
    return Rollouts(log.frame.assign(reward=reward_N))


def fitted(log, first=None):
    return Mixture.fit(count_labels(log, 0.7, first))


def extremes(mixture, value_J):
    """The weights with the smallest and with the largest mean of a quantity, of all that fit the log."""
    return [mixture._find_extreme(sign * value_J, np.ones(len(RATE_J)))[1] for sign in (1.0, -1.0)]


def rates(count, seed=0, a=0.4, b=0.8):
    return np.random.default_rng(seed + 1000).beta(a, b, count)


def test_one_pass_rate_is_found_and_its_figures_are_the_closed_forms():
    log = rollouts(np.full(4000, 0.5), 8)
    mixture = fitted(log)
    zero = mixture.mean(RATE_J**8 + (1 - RATE_J) ** 8)
    assert zero.low <= 2 * 0.5**8 <= zero.high
    assert mixture.mean(RATE_J).value == pytest.approx(0.5, abs=0.02)
    assert float(mixture.weight_J @ (RATE_J - 0.5) ** 2) < 0.005
    assert mixture.widened == 0.0


def test_the_bounds_are_those_of_all_distributions_that_fit():
    """No mixture that explains the logged shares leaves the bounds, and the extreme ones reach them."""
    mixture = fitted(rollouts(rates(2000), 4))
    value_J = (1.0 - RATE_J) ** 32
    figure = mixture.mean(value_J)
    for weight_J in extremes(mixture, value_J):
        share_K = mixture.chance_KJ @ weight_J
        assert (share_K <= mixture.high_K + 1e-6).all()
        assert (share_K >= mixture.low_K - 1e-6).all()
        assert weight_J.sum() == pytest.approx(1.0)
    low, high = (float(weight_J @ value_J) for weight_J in extremes(mixture, value_J))
    assert (figure.low, figure.high) == pytest.approx((low, high), abs=1e-6)
    assert figure.high - figure.low > 0.1, "four responses say little about 32"


def test_a_ratio_per_cost_is_bounded_tighter_than_its_parts_and_holds_what_fits():
    mixture = fitted(rollouts(rates(600), 8))
    rule = StopRule(BalancedExit(4, 4), (8,), 32)
    by_rate, grpo_J = compute_by_rate(rule, 8), 7.0 * RATE_J * (1.0 - RATE_J)
    found = mixture.per_cost(by_rate.signal_J, grpo_J, by_rate.answers_J.sum(axis=0))
    ratio, cost = mixture.mean(by_rate.signal_J, grpo_J), mixture.mean(by_rate.answers_J.sum(axis=0))
    assert ratio.low / cost.high < found.low < found.value < found.high < ratio.high / cost.low
    ends = [*extremes(mixture, by_rate.answers_J.sum(axis=0)), *extremes(mixture, by_rate.signal_J), mixture.weight_J]
    for weight_J in ends:  # all of them fit the log
        seen = (weight_J @ by_rate.signal_J) / (weight_J @ grpo_J) / (weight_J @ by_rate.answers_J.sum(axis=0))
        assert found.low - 1e-9 <= seen <= found.high + 1e-9


@pytest.mark.parametrize(("a", "b"), [(0.4, 0.8), (2.0, 2.0)])
def test_the_bounds_hold_the_truth(a, b):
    """Coverage over 20 logs of 300 groups of four: all four figures together, promised with 95 %."""
    truth_P = np.random.default_rng(5).beta(a, b, 200_000)
    values = {
        "zero": lambda p: p**8 + (1 - p) ** 8, "never": lambda p: (1 - p) ** 32, "mean": lambda p: p,
        "signal": lambda p: p * (1 - p),
    }  # fmt: skip
    held = 0
    for seed in range(20):
        mixture = fitted(rollouts(rates(300, seed, a, b), 4, seed))
        figures = {name: mixture.mean(value(RATE_J)) for name, value in values.items()}
        held += all(figures[name].low <= value(truth_P).mean() <= figures[name].high for name, value in values.items())
    assert held >= 18


def test_groups_of_a_prompt_that_comes_again_count_less():
    rate_G = np.repeat(rates(100), 20)
    alone = fitted(rollouts(rate_G, 4))
    together = fitted(rollouts(rate_G, 4, prompt_G=np.repeat(np.arange(100), 20)))
    assert ((together.high_K - together.low_K) > 1.5 * (alone.high_K - alone.low_K)).all()


def test_responses_that_are_not_independent_widen_the_bounds():
    log = rollouts(np.full(500, 0.5), 4)
    halves = relabelled(log, np.tile([1.0, 1.0, 0.0, 0.0], 500))
    assert fitted(halves).widened > 0.0
    assert any("not independent" in note for note in answer(halves, FEW).notes)


def replay(rule, label_GI):
    """Stop each group where a rule stops. Returns the sizes of the pools, and whether they have both labels."""
    sizes, mixed = [], []
    ends = rule.mark_ends()
    for label_I in label_GI:
        pos_N = np.r_[0, label_I.cumsum()]
        size = next(size for size in range(1, rule.cap + 1) if ends[size, pos_N[size]])
        sizes.append(size)
        mixed.append(0 < pos_N[size] < size)
    return np.array(sizes), np.array(mixed)


def test_exact_figures_by_rate_agree_with_a_replay_of_drawn_labels():
    rule, p = StopRule(BalancedExit(2, 2), (8,), 32), float(RATE_J[30])
    label_GI = np.random.default_rng(3).random((40_000, 32)) < p
    size_G, mixed_G = replay(rule, label_GI)
    by_rate = compute_by_rate(rule, 4)
    assert size_G.mean() == pytest.approx(by_rate.answers_J[:, 30].sum(), rel=0.01)
    assert (~mixed_G).mean() == pytest.approx(by_rate.zero_J[30], abs=0.003)
    assert by_rate.zero_J[[0, -1]].tolist() == [1.0, 1.0]
    assert by_rate.signal_J[[0, -1]].tolist() == [0.0, 0.0]


def test_the_log_checks_its_own_forecast():
    """Groups of eight are predicted from groups of four. A log whose second halves differ fails."""
    log = rollouts(rates(1500), 8)
    check = answer(log, FEW).check
    assert check.half == 4 and check.predicted.low <= check.seen <= check.predicted.high
    assert "check: from 4 answers" in write_introduction(answer(log, FEW))
    reward_N = log.frame["reward"].to_numpy()
    equal = relabelled(log, np.where(np.arange(12_000) % 8 < 4, reward_N, 1 - np.roll(reward_N, 4)))
    assert "OUTSIDE" in write_introduction(answer(equal, FEW))
    assert answer(rollouts(rates(100), 3), FEW).check is None


def test_the_answer_agrees_with_what_grpo_drew():
    log = rollouts(rates(1200), 4)
    found = answer(log, FEW)
    grpo, balance, refill = found.rows
    assert grpo.responses.value == pytest.approx(4.0)
    assert grpo.zero_signal.low <= found.log.zero_signal.value <= grpo.zero_signal.high
    assert grpo.signal.value == pytest.approx(1.0)
    assert grpo.tokens.value == pytest.approx(4 * log.frame["tokens"].mean(), rel=0.02)
    assert balance.responses.low <= balance.responses.value <= balance.responses.high
    assert balance.responses.value > 2 * grpo.responses.value
    assert balance.zero_signal.value < grpo.zero_signal.value
    assert refill.responses.value > grpo.responses.value


def test_the_answer_has_the_named_methods_and_another_cap_as_a_row_of_its_own():
    found = answer(rollouts(rates(300), 4), replace(FEW, max_responses=(16, 32)))
    assert [(row.name, row.max_responses) for row in found.rows] == [
        ("grpo", 4), ("ada_seq_balance", 32), ("ada_seq_balance", 16), (REFILL_ROW, None)
    ]  # fmt: skip
    assert found.rows[2].responses.value < found.rows[1].responses.value


def test_prompts_that_never_taught_are_counted():
    rate_G = np.r_[np.zeros(30), np.full(30, 0.2), np.ones(20), np.zeros(30), np.full(30, 0.8), np.ones(20)]
    log = rollouts(rate_G, 8, prompt_G=np.tile(np.arange(80), 2), step_G=np.repeat([0, 1], 80))
    found = answer(log, FEW)
    assert found.log.never_correct == pytest.approx(30 / 80, abs=0.02)
    assert found.log.always_correct == pytest.approx(20 / 80)


def test_what_a_reader_must_know_is_noted():
    log = rollouts(rates(300), 4, tokens=False)
    reward_N = log.frame["reward"].to_numpy()
    notes = " ".join(answer(relabelled(log, reward_N * 10 + np.arange(1200) % 3), FEW).notes)
    assert "--threshold" in notes
    uneven = relabelled(log, np.where(np.arange(1200) % 8 == 7, np.nan, reward_N))
    notes = " ".join(answer(uneven, FEW).notes)
    assert "no label" in notes
    assert "3 to 4 responses" in notes


def test_presets_that_do_not_fit_are_refused():
    for options in (replace(FEW, presets=("nope",)), replace(FEW, presets=("ada_seq_balance",), group=1)):
        with pytest.raises(UserError):
            answer(rollouts(rates(200), 2), options)


def test_the_command_prints_tables_and_json(tmp_path):
    log = rollouts(rates(120), 4)
    rows = [
        {"prompt": row.group, "reward": row.reward, "tokens": row.tokens, "step": row.step}
        for row in log.frame.itertuples()
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    quick = ["--preset", "grpo", "--preset", "ada_single"]

    def run(*arguments):
        return CliRunner().invoke(app, ["whatif", str(path), *arguments], catch_exceptions=False).stdout

    assert "ada_single" in run(*quick)
    found = json.loads(run(*quick, "--json"))
    assert found["rows"][1]["zero_signal"]["value"] is None, "equal labels teach a single stream"
    assert found["log"]["groups"] == 120


def test_every_preset_has_a_row_or_a_reason():
    found = answer(rollouts(rates(200), 4), Options())
    names = " ".join([row.name for row in found.rows] + list(found.notes))
    assert all(name in names for name in load_presets())


def test_the_single_stream_is_judged_without_a_simulation():
    """Drawn one by one with a baseline that does not know them, n responses give n/(n-1) of the signal of a group."""
    n, p = 4, 0.3
    row = next(row for row in answer(rollouts(rates(400), n), Options()).rows if row.name.startswith("ada_single"))
    assert math.isnan(row.zero_signal.value) and row.responses.value == n
    right_GN = np.random.default_rng(0).random((200_000, n)) < p
    score_GN = right_GN - p  # of a policy with one parameter, the logit
    group = ((right_GN - right_GN.mean(axis=1, keepdims=True)) * score_GN).sum(axis=1).mean()
    single = ((right_GN - 0.6) * score_GN).sum(axis=1).mean()  # any baseline that was there before
    assert row.signal_per_response.value == pytest.approx(single / group, rel=0.02)


@pytest.mark.parametrize(
    ("rate_G", "says"),
    [
        ([0.0] * 300, "read ten answers"), ([0.0] * 299 + [0.3], "read ten answers"), ([1.0] * 300, "harder ones"),
        ([0.5] * 300, "stay with GRPO"), ([0.0, 0.5, 0.4] * 100, "50 steps"),
    ],
)  # fmt: skip
def test_every_answer_ends_with_what_to_do_next(rate_G, says):
    found = answer(rollouts(np.array(rate_G), 8), Options())
    last = write_sentences(found).splitlines()[-1]
    assert last.startswith("Next: ") and says in last
    refill = next(row for row in found.rows if row.name.startswith("DAPO"))
    assert refill.signal.value <= 10.0 + 1e-9 and refill.signal_per_response.value <= 1.0 + 1e-9


def test_dapos_own_acc_says_which_answers_are_right_and_its_score_what_taught(tmp_path):
    """verl's dump of DAPO: the score is 1 or -1 with a penalty for length, so no threshold finds the right ones."""
    rng = np.random.default_rng(5)
    lines, right, spread = [], [], []
    for prompt in range(60):
        acc_N, penalty_N = rng.random(8) < 0.6, np.where(rng.random(8) < 0.5, 0.0, -rng.random(8))
        right.append(acc_N.mean())
        spread.append(len(set((2.0 * acc_N - 1.0 + penalty_N).tolist())) == 1)
        lines += [
            json.dumps({"input": f"p{prompt}", "output": "x", "score": 2.0 * acc - 1.0 + penalty, "acc": bool(acc)})
            for acc, penalty in zip(acc_N, penalty_N, strict=True)
        ]
    file = tmp_path / "1.jsonl"
    file.write_text("\n".join(lines))
    found = answer(read_log([file]), Options())
    assert found.log.pass_rate.value == pytest.approx(np.mean(right))
    assert found.log.zero_signal.value == pytest.approx(np.mean(spread))
    assert any("say themselves if they are right" in note for note in found.notes)
    named = answer(read_log([file], {"reward": "score"}), Options())
    assert named.log.pass_rate.value < np.mean(right), "who names the score means the score"
    assert answer(read_log([file], {"right": "acc", "reward": "score"}), Options()).log == found.log


@pytest.mark.parametrize(
    ("shaped", "equal"),
    [(lambda rng, right: right + 0.01 * rng.random(8), 0.0), (lambda _, right: 0.3 * right, 1.0), (None, None)],
    ids=["never equal", "all below the threshold", "labels"],
)
def test_what_happened_is_counted_from_the_rewards_and_not_from_the_threshold(shaped, equal, tmp_path):
    rng = np.random.default_rng(5)
    lines, seen = [], []
    for prompt in range(60):
        right = (rng.random(8) < rng.choice([0.1, 0.5, 0.9])).astype(float)
        rewards = right if shaped is None else shaped(rng, right)
        seen.append(len(set(rewards.tolist())) == 1)
        lines += [json.dumps({"prompt": prompt, "reward": float(reward), "step": prompt // 10}) for reward in rewards]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("\n".join(lines))
    report = answer(read_log([file]), Options())
    assert report.log.zero_signal.value == pytest.approx(np.mean(seen))
    assert f"{round(100 * np.mean(seen))} % of your groups taught nothing" in write_sentences(report)
    if equal == 1.0:  # nothing is above .7, but many groups taught
        assert report.log.equal_labels == 1.0 and report.log.zero_signal.value < 0.9
        assert "100 % of them are all equal" in write_sentences(report)
