"""recipes/extend: one file per kind, named by `module:name`, through every back end that takes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.cpu.settings import load_run
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload
from nemo_ada.lab.simulate.exact import summarise_rule
from nemo_ada.lab.simulate.objective import compute_taught
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings, OwnTaskSettings
from nemo_ada.trl import AdaRollout
from nemo_ada.verify.judge import make_judge
from tests.patience import PATIENCE
from tests.trl.test_trl import Trainer

ROOT = Path(__file__).resolve().parents[2]
EXTEND = ROOT / "recipes" / "extend"
REWARD = "reward:close_enough"
RESPONSES = {"it is 40": 1.0, "it is 41": 0.5, "it is 7": 0.0, "none": 0.0}  # for the answer 40


@pytest.fixture(autouse=True)
def found(monkeypatch):
    monkeypatch.syspath_prepend(str(EXTEND))
    yield
    for name in ("reward", "exit", "pilot", "objective", "task"):
        sys.modules.pop(name, None)


def data(folder: Path) -> Path:
    path = folder / "my.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{n}+40=", "answer": "40"}) + "\n" for n in range(20)))
    return path


def test_the_reward_on_the_cpu(tmp_path):
    task = build_task(JsonlSettings(path=str(data(tmp_path)), reward=REWARD))
    prompt = task.splits().train[0]
    assert [v.label for v in score_many(task, [(prompt, text, True) for text in RESPONSES])] == list(RESPONSES.values())


def test_the_reward_in_eval_and_data_prepare():
    judge = make_judge("math", REWARD, points=False)
    try:
        judge.try_on("40")
        verdicts = judge.verdicts([(text, "40", True) for text in RESPONSES])
    finally:
        judge.close()
    assert [v.label for v in verdicts] == [float(label == 1.0) for label in RESPONSES.values()]


def test_the_reward_in_trl():
    rows = [{"prompt": "p" * n, "answer": "40"} for n in range(1, 9)]
    trainer = Trainer(rows=rows)
    texts = list(RESPONSES)
    trainer.batch_decode = lambda drawn, skip_special_tokens: [texts[i % len(texts)] for i in range(len(drawn))]
    ada = AdaRollout(REWARD, {"preset": "ada_seq_balance"})
    trainer.step(ada)
    trainer.model.training = False
    ada.rollout(["p", "p"], trainer)
    assert ada.rewards(completions=texts, answer=["40"] * 4) == list(RESPONSES.values())


@pytest.mark.nemo_rl
def test_the_reward_in_nemo_rl():
    """The built-in environment with `env.ada_math.reward`, in an interpreter that has NeMo-RL."""
    home = os.environ.get("NEMO_RL_HOME")
    python = ROOT / ".cache" / "rehearsal" / "policy" / "bin" / "python"
    if home is None or not python.is_file():
        pytest.skip("NEMO_RL_HOME or .cache/rehearsal is missing")
    script = (
        "from nemo_ada.nemo.environment import MathJudge\n"
        f"judge = MathJudge({{'reward': {REWARD!r}, 'workers': 1}})\n"
        f"texts = {list(RESPONSES)!r}\n"
        "logs = [[{'role': 'user', 'content': 'p'}, {'role': 'assistant', 'content': text}] for text in texts]\n"
        "print(judge.step(logs, [{'ground_truth': '40'}] * len(texts)).rewards.tolist())\n"
        "judge.shutdown()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, EXTEND, home)))}
    done = subprocess.run(
        [python, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == list(RESPONSES.values())


def test_the_exit_rule_reaches_the_session():
    rule = {"kind": "own", "name": "exit:Mixed", "arguments": {"spare": 1}}
    sampling = {"kind": "sequential", "exit": rule, "wave_size": [4, 2], "max_responses": 8}
    plan = parse_ada_settings({"sampling": sampling}).plan(group=4, max_new_tokens=400)
    source = DiscreteEventSource(Workload(np.full(256, 0.2), LengthModel(), seed=0, step=0).draw)
    pools = run_sampling(SamplingSession(StepState(plan, np.arange(256)), run_seed=0, step=0), source)
    mixed_P = (pools.pos_P > 0) & (pools.pos_P < pools.size_P)
    assert set(pools.size_P.tolist()) == {6, 8} and mixed_P[pools.size_P < 8].all()


FRUGAL = {"kind": "own", "name": "exit:Frugal", "arguments": {"tokens": 900}}


def test_a_rule_that_reads_tokens_ends_pools_by_them():
    sampling = {"kind": "sequential", "exit": FRUGAL, "wave_size": 4, "max_responses": 32}
    plan = parse_ada_settings({"sampling": sampling}).plan(group=4, max_new_tokens=400)
    source = DiscreteEventSource(Workload(np.full(256, 0.02), LengthModel(), seed=0, step=0).draw)
    pools = run_sampling(SamplingSession(StepState(plan, np.arange(256)), run_seed=0, step=0), source)
    tokens_P = np.bincount(pools.prompt_N, pools.tokens_N, 256)
    before_P = np.bincount(
        pools.prompt_N, np.where(pools.wave_N + 1 < pools.waves_P[pools.prompt_N], pools.tokens_N, 0)
    )
    one_sided_P = (pools.pos_P == 0) & (pools.size_P < 32)
    assert one_sided_P.sum() > 100 and (tokens_P[one_sided_P] >= 900).all() and (before_P[one_sided_P] < 900).all()
    assert pools.resolved_P[one_sided_P].all()


def test_what_labels_alone_cannot_say_of_it_is_refused():
    section = {"sampling": {"kind": "sequential", "exit": FRUGAL, "wave_size": 4, "max_responses": 32}}
    ada = parse_ada_settings(section)
    assert "tokens decide when a prompt has enough" in ada.describe_objective(4)
    with pytest.raises(UserError, match=r"Frugal reads tokens.*simulation of whole steps"):
        summarise_rule(ada.plan(4, 400).stop, 0.5)
    with pytest.raises(UserError, match="Frugal reads tokens"):
        compute_taught("own", ada, 4)
    with pytest.raises(UserError, match="goes by tokens, which no weight"):
        parse_ada_settings({**section, "advantage": {"weighting": "objective"}}).plan(4, 400)


PILOT, GROUP = 4, 16


def pilot(**changes):
    rule = {"kind": "own", "name": "pilot:Pilot", "arguments": {"k": PILOT}}
    section = {"preset": "grpo", "sampling": {"exit": rule, "wave_size": [PILOT, GROUP - PILOT]}}
    return parse_ada_settings(section | changes).plan(GROUP, 400)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_pilots_cost_and_its_zero_signal_share_have_closed_forms(p):
    equal = p**PILOT + (1 - p) ** PILOT
    found = summarise_rule(pilot().stop, p)
    assert found.expected_samples == pytest.approx(PILOT + (GROUP - PILOT) * (1 - equal))
    assert found.p_zero_signal == pytest.approx(equal)


def test_a_group_is_whole_exactly_where_the_pilot_has_both_labels_and_reserve_prompts_take_the_others_places():
    rate_P = np.r_[np.zeros(8), np.full(56, 0.2)]
    source = DiscreteEventSource(Workload(rate_P, LengthModel(), seed=0, step=0).draw)
    session = SamplingSession(StepState(pilot(), np.arange(64), reserve=32), run_seed=0, step=0)
    found = run_sampling(session, source)
    drawn_P = found.drawn_P
    both_P = (found.first_pos_P > 0) & (found.first_pos_P < PILOT)
    assert (both_P & drawn_P).any() and (found.first_size_P[drawn_P] == PILOT).all()
    np.testing.assert_array_equal(found.size_P[drawn_P], np.where(both_P, GROUP, PILOT)[drawn_P])
    assert len(found.group_G) == 32 and (found.size_P[found.group_G] == GROUP).sum() > both_P[:32].sum()


def test_the_objective_weighs_by_its_derivative():
    own = {"kind": "own", "name": "objective:SoftLog", "arguments": {"floor": 0.1}}
    section = {"preset": "ada_seq_log", "advantage": {"weighting": "objective", "objective": own}}
    advantage = parse_ada_settings(section).advantage
    p, h = np.linspace(0.05, 0.95, 10), 1e-6
    slope = (advantage.objective.value(p + h) - advantage.objective.value(p - h)) / (2 * h)
    assert advantage.objective.weight(p) == pytest.approx(slope, abs=1e-8)


def test_the_task_is_built_and_a_yaml_names_it():
    config = load_run(ROOT / "configs/cpu/base.yaml", ["task={name: own, task: 'task:Addition', arguments: {seed: 1}}"])
    task = build_task(config.task)
    prompt = task.splits().train[0]
    asked = [(prompt, prompt.answer, True), (prompt, prompt.answer, False), (prompt, "1" + prompt.answer, True)]
    assert [verdict.label for verdict in score_many(task, asked)] == [1.0, 0.0, 0.0]
    assert max(len(task.tokenizer.encode(p.text)) for p in task.splits().train) <= task.max_prompt_tokens


BROKEN = """
from nemo_ada.core.sampling.exits import ExitRule
class Rule(ExitRule):
    smallest_pool = 1
    def __init__(self, n): pass
    def met(self, pools): return (pools.pos_P > 0).sum()

class NoRule:
    def __init__(self, n): pass

class Silent(Rule):
    def met(self, pools): return pools.tokens_P > 5

class Goal:
    def value(self, p_P):
        raise KeyError("p")
    def weight(self, p_P):
        return p_P

class Task:
    def __init__(self, tokenizer): pass
"""


def test_what_does_not_work_is_said_with_file_and_line(tmp_path, monkeypatch):
    (tmp_path / "broken_parts.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)  # the working folder is searched, too
    rule = {"kind": "own", "name": "broken_parts:Rule"}
    settings = parse_ada_settings({"sampling": {"kind": "sequential", "exit": rule}})
    with pytest.raises(UserError, match=r"exit\.name='broken_parts:Rule': a method gave '2' in place of an array of 3"):
        settings.plan(group=4, max_new_tokens=9)
    other = parse_ada_settings(
        {"sampling": {"kind": "sequential", "exit": {"kind": "own", "name": "broken_parts:NoRule"}}}
    )
    with pytest.raises(UserError, match="is no exit rule; derive the class from"):
        other.plan(group=4, max_new_tokens=9)
    silent = parse_ada_settings(
        {"sampling": {"kind": "sequential", "exit": {"kind": "own", "name": "broken_parts:Silent"}}}
    )
    with pytest.raises(UserError, match=r'reads tokens says so: reads = frozenset\(\{"tokens"\}\) in its class'):
        silent.plan(group=4, max_new_tokens=9)
    own = {"kind": "own", "name": "broken_parts:Goal"}
    goal = parse_ada_settings({"preset": "ada_seq_log", "advantage": {"objective": own}})
    with pytest.raises(UserError, match=r"KeyError: 'p' \(.*broken_parts\.py:16\)"):
        goal.advantage.objective.weight(np.array([0.5]))
    with pytest.raises(UserError, match=r"it has no name, tokenizer, .*recipes/extend/task\.py"):
        build_task(OwnTaskSettings(task="broken_parts:Task"))
    with pytest.raises(UserError, match="has no such name; it has ExitRule, Rule, NoRule, Silent, Goal, Task"):
        build_task(OwnTaskSettings(task="broken_parts:Tusk"))
