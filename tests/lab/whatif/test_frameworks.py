"""What each framework prints and logs is read without a word from the user. The names are those of their sources."""

from __future__ import annotations

import json
import math
import pprint
import time
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import Options, answer, read_log
from nemo_ada.lab.whatif.console import read_console
from nemo_ada.lab.whatif.mixture import compute_no_spread
from nemo_ada.lab.whatif.render import write_sentences

T = 20
REWARD_T = [0.25 + 0.01 * (t % 3) for t in range(T)]
NONE_T, ALL_T = [0.4 + 0.05 * (t % 3) for t in range(T)], [0.1] * T
ZERO_T = [none + every for none, every in zip(NONE_T, ALL_T, strict=True)]
TOKENS = 312.5


def steps(names, **extra):
    """Rows of metrics: `names` says what each is called, the values are those above."""
    values = {"reward": REWARD_T, "none": NONE_T, "all": ALL_T, "zero": ZERO_T, "tokens": [TOKENS] * T}
    rows = []
    for t in range(T):
        row = {name: round(values[what][t] * scale, 6) for name, (what, scale) in names.items()}
        rows.append({key: value(t) if callable(value) else value for key, value in extra.items()} | row)
    return rows


VERL = steps(
    {"critic/score/mean": ("reward", 1), "response_length/mean": ("tokens", 1)},
    **{"actor/entropy": 0.31, "critic/score/max": 1.0, "critic/score/min": 0.0, "critic/rewards/mean": 0.9,
       "val-core/math/reward/mean@8": 0.7, "timing_s/gen": 20.5, "perf/mfu/actor": 0.4},
)  # fmt: skip
PRIME = steps(
    {"train/agg/all/default/reward/mean": ("reward", 1), "train/agg/all/default/solved_none": ("none", 1),
     "train/agg/all/default/solved_all": ("all", 1), "train/agg/all/default/num_output_tokens/mean": ("tokens", 1)},
    **{"train/agg/effective/default/reward/mean": 0.5, "train/gsm8k/all/default/reward/mean": 0.9,
       "eval/aime/all/default/reward/mean": 0.1, "progress/tokens": 9, "step": lambda t: t, "time": 1.5e9},
)  # fmt: skip
MILES = steps(
    {"rollout/raw_reward": ("reward", 1), "rollout/zero_std/all_zero_percentage": ("none", 1),
     "rollout/zero_std/all_one_percentage": ("all", 1), "rollout/response_len/mean": ("tokens", 1)},
    **{"rollout/zero_std/count_0.0": 12, "rollout/rewards": 0.0, "rollout/truncated_ratio": 0.1},
)  # fmt: skip
OPENRLHF = steps({"rollout/reward_mean": ("reward", 1), "rollout/response_length_mean": ("tokens", 1)},
                 policy_loss=0.1, reward=0.4, kl=0.0)  # fmt: skip
SKYRL = steps({"reward/avg_raw_reward": ("reward", 1), "generate/avg_num_tokens": ("tokens", 1)},
              **{"reward/avg_pass_at_8": lambda t: 1.0 - NONE_T[t], "reward/mean_positive_reward": 0.3,
                 "eval/all/avg_score": 0.2, "trainer/global_step": lambda t: t})  # fmt: skip
TRL_NAMES = {"reward": ("reward", 1), "frac_reward_zero_std": ("zero", 1), "completions/mean_length": ("tokens", 1)}
PARTS = {"rewards/right/mean": lambda t: REWARD_T[t], "rewards/right/std": 0.4}
TRL = steps(TRL_NAMES, loss=0.01, epoch=lambda t: 0.01 * t, **PARTS)
NEMO = """
========================= Step {step}/20 =========================
▶ Generating responses for batch of size 64...
assistant: Step 7: so Avg Reward: 0.9999 and more
📊 Training Results:
  • Loss: 0.0123
  • Generation KL Error: 0.0004
  • Avg Reward: {reward:.6f}
  • Mean Generation Length: 312.5000

⏱️  Timing:
  • Total step time: 56.06s
  • policy_training: 18.20s (32.5%)
"""


def verl_line(t, row):
    return f"step:{t} - " + " - ".join(f"{name}:{value!r}" for name, value in row.items())


def verl_plain():
    return "\n".join(verl_line(t, row) for t, row in enumerate(VERL))


def verl_ray():
    """Ray's colours, process and warnings, and numbers of numpy."""
    lines = [
        f"\x1b[36m(TaskRunner pid=123, ip=10.0.0.7)\x1b[0m {verl_line(t, row)}".replace(":0.31", ":np.float64(0.31)")
        for t, row in enumerate(VERL)
    ]
    return "\n".join([*lines[:3], "(raylet) WARNING step:9 of 20 was slow", *lines[3:]])


def verl_rich():
    """A handler of rich breaks lines at the width of the console, and puts a place behind the first part."""
    text = []
    for t, row in enumerate(VERL):
        parts = verl_line(t, row).split(" - ")
        first, rest = " - ".join(parts[:4]), parts[4:]
        text.append(f"[12:00:{t:02}] INFO     {first} -           tracking.py:233")
        text += [
            " " * 19 + " - ".join(rest[i : i + 3]) + (" -" if rest[i + 3 :] else "") for i in range(0, len(rest), 3)
        ]
    return "\n".join(text)


def trl_console():
    shown = [f"  5%|▌   | {t}/20 [00:01<?, 1s/it]{ {k: str(v) for k, v in row.items()} }" for t, row in enumerate(TRL)]
    return "Loading {'a': 1}\n" + "\r".join(shown)


def slime_console(rows=MILES):
    """Two dictionaries per rollout, and others with steps of their own."""
    text = []
    for t, row in enumerate(rows):
        both = list(row.items())
        text.append(f"[2026-08-21] metrics.py:89 - perf {t}: {dict(both[1:])}")
        text.append(f"(RolloutManager pid=4) rollout {t}: {dict(both[:1])}")
        text += [f"step {2 * t + i}: {{'train/loss': 0.1, 'train/step': {2 * t + i}}}" for i in range(2)]
        text.append(f"eval {t}: {{'eval/aime': 0.5, 'rollout/raw_reward': 0.99}}")
    return "\n".join(text)


def skyrl_console():
    return "\n".join(
        f"2026-08-21 12:00:00.1 | INFO | skyrl.train.utils.tracking:log:190 - Step {t}: \n"
        + pprint.pformat({name: f"{value:.4f}" for name, value in row.items()})
        for t, row in enumerate(SKYRL)
    )


def prime_console():
    return "\n".join(
        f"12:00:01 \x1b[32mSUCCESS\x1b[0m Step {t} |  12.34s | Reward {reward:.4f} | Trainable 40/64 (62.5%) "
        f"| Turns 1.0 | Max Off-Policy 2 | Error 0.0% | Truncation 1.2%\n\t\t ╰─ gsm8k | Ratio 50.0% | Reward 0.9000"
        for t, reward in enumerate(REWARD_T)
    )


def nemo_srun():
    text = "".join(NEMO.format(step=t + 1, reward=r) for t, r in enumerate(REWARD_T))
    return "\n".join(f"0: {line}" for line in text.splitlines())


def skyrl_lines():
    """Without its console logger SkyRL prints these alone, and no step."""
    return "\n".join(
        f"12:00 | INFO | reward/avg_pass_at_8: 0.5, reward/avg_raw_reward: {reward}, reward/mean_positive_reward: 0.3"
        for reward in REWARD_T
    )


def any_console():
    return "\n".join(f"INFO step {t} reward={reward} kl=0.01 lr=1e-06" for t, reward in enumerate(REWARD_T))


CONSOLES = {
    "verl": (verl_plain, False, True),
    "verl under Ray": (verl_ray, False, True),
    "verl under rich": (verl_rich, False, True),
    "TRL": (trl_console, True, True),
    "miles": (slime_console, True, True),
    "slime": (
        lambda: slime_console([{k: v for k, v in row.items() if "percentage" not in k} for row in MILES]),
        False,
        True,
    ),
    "OpenRLHF": (lambda: "\n".join(f"✨ Global step {t}: {row}" for t, row in enumerate(OPENRLHF)), False, True),
    "SkyRL": (skyrl_console, False, True),
    "prime-rl": (prime_console, False, False),
    "NeMo-RL": (lambda: "".join(NEMO.format(step=t + 1, reward=r) for t, r in enumerate(REWARD_T)), False, True),
    "NeMo-RL under srun": (nemo_srun, False, True),
    "SkyRL, lines": (skyrl_lines, False, False),
    "any": (any_console, False, False),
}
"""Framework -> what it prints, and whether the share of groups without spread and the tokens are in it."""


@pytest.mark.parametrize("name", CONSOLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_a_framework_prints_is_read(name, encoding, tmp_path):
    text, zero, tokens = CONSOLES[name]
    (tmp_path / "run.log").write_bytes(text().encode(encoding))
    for path in (tmp_path / "run.log", tmp_path):
        found = read_log([path])
        assert found.mean_T.tolist() == pytest.approx(REWARD_T, abs=1e-4)
        assert np.isfinite(found.zero_T).all() == zero
        assert not zero or found.zero_T.tolist() == pytest.approx(ZERO_T, abs=1e-4)
        assert set(found.tokens_T) == {TOKENS} if tokens else np.isnan(found.tokens_T).all()


@pytest.mark.parametrize(
    "part", [" ", "=", "1", "{", "'a' ", "step:1 - a:1 ", "(a pid=1", "\x1b]", "np.float64(", "  a.py:"]
)
def test_a_hostile_console_costs_time_in_proportion_to_its_length(part, tmp_path):
    """Some patterns took the square of the length: a minute for a line of blanks."""

    def seconds(length):
        text = (f"step:1 - a:{part}" + part * length)[:length]
        begin = time.process_time()
        list(read_console(text))
        return time.process_time() - begin

    assert seconds(400_000) < 20 * seconds(100_000) + 0.5


def lines(rows):
    return "run.jsonl", "\n".join(map(json.dumps, rows))


def history(rows):
    """The history of a run of Weights & Biases as pandas writes it: a cell per metric, and many are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    return "history.csv", "\n".join([f",_step,{','.join(names)}", *(f"{i},{i},{line}" for i, line in enumerate(cells))])


def verl_file(rows):
    return "exp.jsonl", "\n".join(json.dumps({"step": t, "data": row}) for t, row in enumerate(rows))


@pytest.mark.parametrize("form", [lines, history, verl_file])
@pytest.mark.parametrize(
    ("rows", "zero"),
    [(VERL, False), (PRIME, True), (MILES, True), (SKYRL, False), (TRL, True),
     ([{f"train/{name}": value for name, value in row.items()} for row in OPENRLHF], False)],
    ids=["verl", "prime-rl", "miles", "SkyRL", "TRL", "OpenRLHF"],
)  # fmt: skip
def test_the_metrics_of_a_framework_are_known(form, rows, zero, tmp_path):
    name, text = form(rows)
    (tmp_path / name).write_text(text)
    found = read_log([tmp_path / name])
    assert found.mean_T.tolist() == pytest.approx(REWARD_T)
    assert not zero or found.zero_T.tolist() == pytest.approx(ZERO_T)
    assert set(found.tokens_T) == {TOKENS}


def nemo_rl_rows(rates, loo, group=8, prompts=64):
    """A run whose prompts have these pass rates, with NeMo-RL's percentages of baselines, and its share of silence."""
    rng, rows, equal = np.random.default_rng(3), [], []
    for step in range(60):
        reward_PI = (rng.random((prompts, group)) < rng.choice(rates, prompts)[:, None]).astype(float)
        others_PI = (reward_PI.sum(axis=1, keepdims=True) - reward_PI) / (group - 1)
        baseline_PI = others_PI if loo else np.broadcast_to(reward_PI.mean(axis=1, keepdims=True), reward_PI.shape)
        equal.append(float((reward_PI.std(axis=1) == 0).mean()))
        zero, one = 100 * (baseline_PI == 0).mean(), 100 * (baseline_PI == 1).mean()
        rows.append(
            {"step": step, "train/reward": reward_PI.mean(), "train/baseline_reward/pct_0": zero,
             "train/baseline_reward/pct_1": one, "train/baseline_reward/pct_mixed": 100 - zero - one}
        )  # fmt: skip
    return rows, float(np.mean(equal))


@pytest.mark.parametrize("loo", [True, False])
@pytest.mark.parametrize("left", ["pct_mixed", "pct_0"])
def test_nemo_rls_percentages_of_baselines_bound_the_groups_without_spread(loo, left, tmp_path):
    rows, seen = nemo_rl_rows([0.0, 0.1, 0.5, 0.95], loo)
    kept = [{name: value for name, value in row.items() if left not in name} for row in rows]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, kept if left == "pct_mixed" else rows)))
    found = read_log([tmp_path / "m.jsonl"])
    share = found.fit_mixture(8).share(compute_no_spread(8))
    assert share.low - 0.02 <= seen <= share.high + 0.02
    assert share.high - share.low < 0.25, "the mean reward alone would say much less"
    assert np.isnan(found.zero_T).all(), "it is no count of groups"
    assert any("leave-one-out" in note for note in found.notes)
    assert read_log([tmp_path / "m.jsonl"], values=(-1.0, 1.0)).others_T is None
    filtered = [row | {"train/dynamic_sampling_num_gen_batches": 2} for row in rows]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, filtered)))
    assert read_log([tmp_path / "m.jsonl"]).others_T is None


def test_skyrls_share_of_solved_prompts_says_the_group_and_narrows_the_bounds(tmp_path):
    rng, rows = np.random.default_rng(5), []
    for step in range(60):
        pos_G = rng.binomial(8, rng.choice([0.0, 0.1, 0.5, 0.95], 64))
        rows.append({"trainer/global_step": step, "reward/avg_raw_reward": pos_G.mean() / 8,
                     "reward/avg_pass_at_8": (pos_G > 0).mean()})  # fmt: skip
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_log([tmp_path / "m.jsonl"])
    report = answer(found, Options(presets=("grpo",)))
    assert report.group == 8
    alone = [{name: value for name, value in row.items() if "pass_at" not in name} for row in rows]
    (tmp_path / "alone.jsonl").write_text("\n".join(map(json.dumps, alone)))
    wide = read_log([tmp_path / "alone.jsonl"]).fit_mixture(8).share(compute_no_spread(8))
    narrow = report.rows[0].zero_signal
    assert narrow.high - narrow.low < 0.6 * (wide.high - wide.low)


def test_verls_smallest_and_largest_score_are_the_scale(tmp_path):
    rows = [row | {"critic/score/mean": 2 * row["critic/score/mean"] - 1, "critic/score/min": -2.0 if t == 4 else -1.0}
            for t, row in enumerate(VERL)]  # fmt: skip
    (tmp_path / "out.log").write_text("\n".join(verl_line(t, row) for t, row in enumerate(rows)))
    found = read_log([tmp_path / "out.log"])
    assert found.mean_T.tolist() == pytest.approx(REWARD_T) and "between -1 and 1" in " ".join(found.notes)
    with pytest.raises(UserError, match="--values"):
        read_log([tmp_path / "out.log"], values=(0.0, 1.0))


@pytest.mark.parametrize(
    ("extra", "word"),
    [({"num_gen_batches": 3}, "num_gen_batches"), ({"dynamic_filtering_pass_rate": 40.0}, "pass_rate")],
)
def test_a_log_of_kept_groups_only_says_so(extra, word, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row | {"step": t} | extra) for t, row in enumerate(TRL)))
    assert any(word in note and "the groups that it kept" in note for note in read_log([tmp_path / "a.jsonl"]).notes)
    whole = {"num_gen_batches": 1, "dynamic_filtering_pass_rate": 100.0}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row | {"step": t} | whole) for t, row in enumerate(TRL)))
    assert not any("kept" in note for note in read_log([tmp_path / "a.jsonl"]).notes)


def test_a_mean_reward_alone_is_told_to_log_rollouts(tmp_path):
    (tmp_path / "verl.log").write_text(verl_plain())
    report = answer(read_log([tmp_path / "verl.log"]), Options(group=8, presets=("grpo",)))
    assert "Next: log the responses of some steps" in write_sentences(report)


def test_an_error_proposes_the_metric_that_would_do(tmp_path):
    rows = [{"step": t, "loss": 0.1, "env/solve_rate": reward, "kl": 0.0} for t, reward in enumerate(REWARD_T)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="--column reward=env/solve_rate "):
        read_log([tmp_path / "a.jsonl"])
    tag = "\n".join(["Wall time,Step,Value", *(f"1.5,{t},{reward}" for t, reward in enumerate(REWARD_T))])
    (tmp_path / "run-tag-reward.csv").write_text(tag)  # as TensorBoard's page saves one curve
    with pytest.raises(UserError, match="--column reward=Value"):
        read_log([tmp_path / "run-tag-reward.csv"])
    assert len(read_log([tmp_path / "run-tag-reward.csv"], {"reward": "Value"}).mean_T) == T
    two = [row | {"train/agg/all/other/reward/mean": 0.3} for row in PRIME]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, two)))
    with pytest.raises(UserError, match="--column reward=agg/all/default/reward/mean"):
        read_log([tmp_path / "b.jsonl"])
    chosen = read_log([tmp_path / "b.jsonl"], {"reward": "train/agg/all/default/reward/mean"})
    assert chosen.mean_T.tolist() == pytest.approx(REWARD_T)


@pytest.mark.parametrize("wide", [False, True])
def test_two_runs_in_one_console_are_refused_and_a_resumed_one_is_read(wide, tmp_path):
    write = (lambda t: verl_line(t, VERL[t])) if wide else (lambda t: NEMO.format(step=t, reward=REWARD_T[t]))
    (tmp_path / "run.log").write_text("\n".join(write(t) for t in [*range(T), *range(T)]))
    with pytest.raises(UserError, match=r"run.log holds two runs: behind step 19 follows 0 again"):
        read_log([tmp_path / "run.log"])
    (tmp_path / "resumed.log").write_text("\n".join(write(t) for t in [*range(15), *range(9, T)]))
    assert len(read_log([tmp_path / "resumed.log"]).mean_T) == T


@pytest.mark.parametrize(("between", "point"), [(";", ","), (";", "."), ("\t", "."), ("\t", ",")])
def test_charts_that_a_spreadsheet_saved_are_read(between, point, tmp_path):
    rows = [f"\ufeffStep{between}lucky-7 - train/reward{between}lucky-7 - train/frac_reward_zero_std"]
    rows += [between.join(str(cell).replace(".", point) for cell in (t, REWARD_T[t], ZERO_T[t])) for t in range(T)]
    (tmp_path / "excel.csv").write_text("\r\n".join(rows))
    found = read_log([tmp_path / "excel.csv"])
    np.testing.assert_allclose(found.mean_T, REWARD_T)
    np.testing.assert_allclose(found.zero_T, ZERO_T)


# Rollouts


def rewards(log):
    return log.frame["reward"].tolist()


def test_groups_in_one_record_are_rollouts(tmp_path):
    """The authors of Reinforce-Ada keep a problem per line, with its responses and their scores."""
    group = {
        "problem": "2 + 2",
        "prompt": "<user>2 + 2",
        "gt": "4",
        "responses": ["4", "five", "4 "],
        "scores": [1.0, 0.0, 1],
    }
    (tmp_path / "score.jsonl").write_text(json.dumps(group) + "\n" + json.dumps(group | {"prompt": "3 + 3"}))
    found = read_log([tmp_path / "score.jsonl"])
    assert rewards(found) == [1.0, 0.0, 1.0] * 2 and found.frame["prompt"].nunique() == 2
    (tmp_path / "array.json").write_text(json.dumps([group, group | {"prompt": "3 + 3"}], indent=1))
    assert rewards(read_log([tmp_path / "array.json"])) == rewards(found)
    messages = group | {"prompt": [{"role": "user", "content": part} for part in "abc"], "response_lengths": [3, 4, 5]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(messages))
    found = read_log([tmp_path / "chat.jsonl"])
    assert found.frame["prompt"].nunique() == 1 and found.frame["tokens"].tolist() == [3, 4, 5]
    cells = {name: json.dumps(value) if isinstance(value, list) else value for name, value in group.items()}
    (tmp_path / "cells.jsonl").write_text(json.dumps(cells))
    assert rewards(read_log([tmp_path / "cells.jsonl"])) == [1.0, 0.0, 1.0]
    objects = {"prompt": "2 + 2", "rollouts": [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]}
    (tmp_path / "objects.jsonl").write_text(json.dumps(objects))
    assert rewards(read_log([tmp_path / "objects.jsonl"])) == [1.0, 0.0]
    (tmp_path / "bare.jsonl").write_text(
        json.dumps({name: group[name] for name in ("prompt", "responses")} | {"marks": [1, 0, 1]})
    )
    with pytest.raises(UserError, match="has no reward"):
        read_log([tmp_path / "bare.jsonl"])


def test_a_table_of_wandb_is_read(tmp_path):
    names = ["step", "prompt", "completion", "right", "advantage"]
    rows = [[t // 4, f"p{t // 4}", f"answer {t}", float(t % 2), 0.1] for t in range(8)]
    (tmp_path / "completions_1.table.json").write_text(json.dumps({"columns": names, "data": [*rows, 3]}))
    for path in (tmp_path / "completions_1.table.json", tmp_path):
        assert rewards(read_log([path])) == [0.0, 1.0] * 4


def test_percent_and_commas_in_cells_of_responses(tmp_path):
    rows = ["prompt;reward;response;tokens", *(f"p{i // 4};{100 * (i % 2)}%;text {i};1,5" for i in range(8))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    found = read_log([tmp_path / "rows.csv"])
    assert rewards(found) == [0.0, 1.0] * 4 and set(found.frame["tokens"]) == {1.5}


def test_an_episode_of_prime_rl_has_responses_and_what_it_selects_does_not_count_twice(tmp_path):
    def episode(number, score, kind="train"):
        call = {"usage": {"completion_tokens": 30}}
        parts = {"right": {"score": score, "weight": 1.0}, "form": {"score": 1.0, "weight": 0.0}}
        trace = {"id": f"t{number}", "agent": {"trainable": True}, "calls": [call, call], "rewards": parts}
        return {"id": f"e{number}", "run": {"type": kind, "work": {"step": 3}}, "env": {"id": "gsm8k"},
                "task": {"key": f"k{number // 2}"}, "group": {"id": f"g{number // 2}"}, "traces": [trace]}  # fmt: skip

    for kind in ("all", "effective"):
        folder = tmp_path / "rollouts" / "step_3" / "train" / kind
        folder.mkdir(parents=True)
        episodes = [*(episode(i, i % 2) for i in range(4)), episode(9, 1, "eval")]
        (folder / "traces.jsonl").write_text("\n".join(map(json.dumps, episodes)))
    found = read_log([tmp_path])
    assert rewards(found) == [0.0, 1.0] * 2 and found.frame["group"].tolist() == [0, 0, 1, 1]
    assert set(found.frame["tokens"]) == {60.0}


def test_a_rollout_that_slime_saved_with_torch_is_read_and_nothing_in_it_runs(tmp_path):
    torch = pytest.importorskip("torch")

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "planted"), "w"))

    def sample(i):
        reward = np.float64(i % 2) if i < 2 else {"score": i % 2, "acc": True}
        return {"group_index": i // 2, "index": i, "prompt": f"p{i // 2}", "tokens": [1, 2, 300, 70_000, 3 + i],
                "response": f"answer {i}", "response_length": 3, "reward": reward,
                "status": "completed", "rollout_log_probs": torch.tensor([0.1, 0.2]), "metadata": {}, "evil": Evil(),
                "odd": (1, (2, 3), None, True, b"x", 2**70, -5, "é" * 300, {1.5, 2.5}), "loss_mask": None}  # fmt: skip

    for number in (9, 10):
        torch.save({"rollout_id": number, "samples": [sample(i) for i in range(4)]}, tmp_path / f"rollout_{number}.pt")
    (tmp_path / "planted").unlink(missing_ok=True)
    for path in (tmp_path, tmp_path / "rollout_9.pt"):
        found = read_log([path])
        assert rewards(found)[:4] == [0.0, 1.0] * 2 and set(found.frame["tokens"]) == {3.0}
    assert read_log([tmp_path]).frame["step"].tolist() == [0] * 4 + [1] * 4
    assert not (tmp_path / "planted").exists()
    whole = (tmp_path / "rollout_9.pt").read_bytes()
    for name, content in (("cut.pt", whole[:-200]), ("none.pt", b"nope"), ("old.pt", b"\x80\x02}q\x00.")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_log([tmp_path / name])


def test_a_response_that_was_judged_and_masked_keeps_its_label(tmp_path):
    """NeMo-RL masks answers that were cut off (overlong filtering). Their labels are part of the pass rate."""
    row = {"rewards": [1.0], "token_ids": [[7, 8, 3, 4]], "token_loss_mask": [[0, 1, 1, 1]], "sample_loss_mask": [0.0]}
    (tmp_path / "train_data_step1.jsonl").write_text(json.dumps(row))
    assert rewards(read_log([tmp_path])) == [1.0]
    placeholder = row | {"token_loss_mask": [[0, 1, 0, 0]]}
    (tmp_path / "train_data_step1.jsonl").write_text(json.dumps(placeholder))
    assert math.isnan(rewards(read_log([tmp_path]))[0])


GREEDY = SimpleNamespace(
    texts=[{"prompt": i // 4, "response": f"answer of {i // 4}", "reward": i // 4 % 3 == 0} for i in range(200)],
    labels=[{"prompt": i // 4, "reward": i // 4 % 3 == 0} for i in range(200)],
    curve=[{"step": t, "reward": 0.3 + 0.01 * (t % 3), "frac_reward_zero_std": 1.0} for t in range(30)],
)


@pytest.mark.parametrize("kind", vars(GREEDY))
def test_greedy_decoding_is_named_and_nobody_is_told_to_take_other_prompts(kind, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, getattr(GREEDY, kind))))
    done = CliRunner().invoke(app, ["whatif", str(tmp_path / "a.jsonl"), "--group", "4", "--preset", "grpo"])
    assert done.exit_code == 0, done.exception
    assert "greedy decoding (temperature 0)" in done.stdout and "Next: sample 4 answers per prompt" in done.stdout
    assert "easier" not in done.stdout and "harder" not in done.stdout


def test_short_answers_that_are_right_and_equal_are_no_greedy_decoding(tmp_path):
    rows = [{"prompt": i // 4, "response": "4", "reward": 1} for i in range(400)]
    rows[0] = {"prompt": 0, "response": "5", "reward": 0}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = write_sentences(answer(read_log([tmp_path / "a.jsonl"]), Options(presets=("grpo",))))
    assert "greedy" not in told and "take harder ones" in told


def test_counts_of_groups_are_no_shares(tmp_path):
    """rLLM counts the prompts that were never and always solved, under names that prime-rl had for shares."""
    rows = [
        {"step": t, "critic/score/mean": REWARD_T[t], "batch/solve_none": 20, "batch/solve_all": 3} for t in range(T)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_log([tmp_path / "a.jsonl"])
    assert np.isnan(found.zero_T).all() and any("counts groups" in note for note in found.notes)


def test_prompts_that_are_all_too_hard_are_no_greedy_decoding(tmp_path):
    rows = [{"prompt": i // 4, "response": f"answer {i}", "reward": 0} for i in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = write_sentences(answer(read_log([tmp_path / "a.jsonl"]), Options(presets=("grpo",))))
    assert "greedy" not in told and "take easier ones" in told
