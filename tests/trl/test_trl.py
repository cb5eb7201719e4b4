"""The adapter of TRL: its batch with a trainer that is only an engine, and training with the real GRPOTrainer."""

import asyncio
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nemo_ada.errors import UserError
from nemo_ada.trl import NEEDED, AdaRollout, Rewards
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("NEMO_ADA_TRL_PYTHON", ROOT / ".cache" / "peers" / "trl" / "bin" / "python"))
GROUP = 4


class Trainer(SimpleNamespace):
    """TRL's trainer as the adapter sees it. Its engine says yes or no, more often yes for a longer prompt."""

    def __init__(self, group=GROUP, rows=None, **settings):
        rng = np.random.default_rng(0)
        rows = rows or [{"prompt": "p" * number, "answer": "yes"} for number in range(1, 9)]
        accelerator = SimpleNamespace(num_processes=settings.pop("num_processes", 1))
        needed = {key: value for key, value in NEEDED.items() if "." not in key}
        super().__init__(
            model=SimpleNamespace(training=True), num_generations=group + 1, num_generations_eval=2,
            max_completion_length=3, args=SimpleNamespace(seed=3), accelerator=accelerator, train_dataset=rows,
            state=SimpleNamespace(global_step=0), processing_class=self, eos_token_id=9, rng=rng, logged={},
            **{**needed, **settings},
        )  # fmt: skip

    def _tokenize_prompts(self, prompts):
        return [[len(prompt)] for prompt in prompts], None, {}

    def _generate_single_turn(self, prompt_ids, images, fields, number):
        yes = self.rng.random(len(prompt_ids)) < np.array([ids[0] for ids in prompt_ids]) / 9
        return [[1, 9] if one else [0, 0, 9] for one in yes], None

    def batch_decode(self, drawn, skip_special_tokens):
        return ["yes" if ids[0] else "no" for ids in drawn]

    def _log_metric(self, name, value):
        self.logged[name] = value

    def _log_completion_extra(self, name, values):
        self.logged[name] = values

    def step(self, ada):
        """TRL's way from prompts to advantages."""
        prompts = [row["prompt"] for row in self.train_dataset for _ in range(self.num_generations)]
        batch = ada.rollout(prompts, self)
        rewards = np.array(ada.rewards(prompts=prompts, log_metric=self._log_metric)).reshape(-1, self.num_generations)
        advantages = np.nan_to_num(rewards - np.nanmean(rewards, axis=1, keepdims=True))
        assert {len(column) for column in batch.values() if column is not None} == {len(prompts)}
        return batch, advantages


def right(completions, answer, **_):
    return [float(text == expected) for text, expected in zip(completions, answer, strict=True)]


def test_trl_computes_the_advantages_of_the_core():
    trainer, ada = Trainer(), AdaRollout(right, {"preset": "ada_seq_balance"})
    batch, advantages = trainer.step(ada)
    wanted = np.array(ada.advantages).reshape(-1, GROUP + 1)
    np.testing.assert_allclose(advantages, np.nan_to_num(wanted), atol=1e-12)
    assert (np.abs(wanted[:, :-1].sum(axis=1)) > 0.01).any()  # TRL alone would have centred these groups
    in_loss = np.array([sum(mask) for mask in batch["env_mask"]]).reshape(wanted.shape)
    assert (in_loss[:, :-1] > 0).all()
    assert (in_loss[:, -1] == 0).all()
    assert trainer.logged["ada/samples_drawn"] > len(trainer.train_dataset) * GROUP


def test_rows_without_weight_are_not_in_the_loss():
    trainer = Trainer()
    ada = AdaRollout(lambda **columns: [None if text == "no" else 1.0 for text in columns["completions"]],
                     {"preset": "grpo", "max_failed_share": 1.0})  # fmt: skip
    batch, advantages = trainer.step(ada)
    placeholders = np.isnan(np.array(ada.advantages))
    assert placeholders.any()
    assert all(sum(batch["env_mask"][row]) == 0 for row in np.flatnonzero(placeholders))
    assert not advantages.any()


def test_an_evaluation_draws_as_trl_does():
    trainer, ada = Trainer(), AdaRollout(right, {"preset": "ada_seq_lean"})
    trainer.step(ada)
    trainer.model.training = False
    assert len(ada.rollout(["p", "p"], trainer)["completion_ids"]) == 2
    assert ada.rewards(completions=["yes", "no"], answer=["yes", "yes"]) == [1.0, 0.0]


@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "grpo"}, {"scale_rewards": "group"}, {"num_processes": 2}, {"rows": [{"prompt": "p"}] * 2}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_trainer_that_would_change_the_advantages_is_refused(settings):
    with pytest.raises(UserError):
        Trainer(**settings).step(AdaRollout(right, {"preset": "ada_seq_lean"}))


async def later(completions, answer, **columns):
    return right(completions, answer, **columns)


def test_an_async_reward_and_a_stream_of_rows_are_taken(caplog):
    plain, other = Trainer(), Trainer()
    other.train_dataset = (row for row in list(plain.train_dataset))  # an IterableDataset has no length
    prompts = [row["prompt"] for row in plain.train_dataset for _ in range(GROUP + 1)]
    wanted, found = AdaRollout(right, {"preset": "ada_seq_lean"}), AdaRollout(later, {"preset": "ada_seq_lean"})
    assert found.rollout(prompts, other) == wanted.rollout(prompts, plain)
    assert found.advantages == pytest.approx(wanted.advantages, nan_ok=True)
    assert "trains groups of 4: num_generations=5 less the counterweight" in caplog.text


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (lambda **_: 1.0, "gave a float for 1 completion"),
        (lambda **_: [1.0, 0.0], "gave 2 values for 1 completion"),
        (lambda **_: None, "gave a NoneType"),
        (lambda **_: {"reward": 1.0}, "for 1 completion"),
        (lambda completions, **_: [{"x": 1}] * len(completions), "something else than numbers"),
    ],
)
def test_a_reward_that_gives_no_list_of_numbers_is_refused_before_anything_is_drawn(reward, says):
    trainer = Trainer()
    with pytest.raises(UserError, match=says):
        trainer.step(AdaRollout(reward, {"preset": "ada_seq_lean"}))
    assert trainer.rng.bit_generator.state == Trainer().rng.bit_generator.state, "a response was drawn"


@pytest.mark.parametrize(
    ("body", "column", "says"),
    [
        ("return 1.0 / 0", "answer", "own_reward.py:2"),
        ("return [1.0]", "answer", "own_reward.py:1"),
        ("return 1.0", "solution", "rename your column"),
    ],
)
def test_a_reward_by_name_is_tried_on_a_reference_before_anything_is_drawn(tmp_path, monkeypatch, body, column, says):
    (tmp_path / "own_reward.py").write_text(f"def judge(response, answer):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_reward", raising=False)
    trainer = Trainer(rows=[{"prompt": "1+1=", column: "2"}])
    with pytest.raises(UserError, match=re.escape(says)):
        trainer.step(AdaRollout("own_reward:judge", {"preset": "grpo"}))
    assert trainer.rng.bit_generator.state == Trainer().rng.bit_generator.state, "a response was drawn"


def test_a_run_without_any_signal_is_said(caplog):
    Trainer().step(AdaRollout(lambda completions, **_: [0.0] * len(completions), {"preset": "ada_seq_lean"}))
    assert "step 0 taught nothing" in caplog.text


def test_a_reward_gets_exactly_the_arguments_that_trl_gives():
    """TRL: prompts, completions, completion_ids, the other columns, trainer_state, log_extra, log_metric."""
    seen = []

    def strict(prompts, completions, completion_ids, answer, tests, trainer_state, log_extra, log_metric):
        seen.append((prompts, completions, completion_ids, answer, tests, trainer_state.global_step))
        log_metric("mine", 1.0)
        log_extra("shown", completions)
        return [float(text == own) for text, own in zip(completions, answer, strict=True)]

    rows = [
        {"prompt": "p" * n, "answer": "yes", "tests": [{"in": n}], "completion_ids": "theirs", "completion": "x"}
        for n in range(1, 9)
    ]
    trainer = Trainer(rows=rows)
    trainer.step(AdaRollout(strict, {"preset": "ada_seq_lean"}))
    assert {"mine": 1.0}.items() <= trainer.logged.items() and "shown" in trainer.logged
    for prompts, completions, ids, answer, tests, step in seen:
        assert len(prompts) == len(completions) == len(ids) == len(answer) == len(tests) and step == 0
        assert all(isinstance(one, list) and all(isinstance(token, int) for token in one) for one in ids)
        assert all(own == [{"in": len(prompt)}] for own, prompt in zip(tests, prompts, strict=True))


@pytest.mark.parametrize(("weights", "wanted"), [((), [1.5, None, 0.5]), ((2.0, 0.5), [2.25, None, 0.25])])
def test_several_rewards_count_with_their_weights_and_none_counts_for_nothing(weights, wanted):
    def first(completions, **_):
        return [1.0, None, None]

    async def second(completions, **_):
        return [0.5, None, 0.5]

    assert Rewards([first, second], weights)({"completions": ["a", "b", "c"]}) == wanted
    with pytest.raises(UserError, match="1 weights do not fit 2 rewards"):
        Rewards([first, second], [1.0])


def test_an_async_reward_works_in_a_running_loop_and_all_calls_share_one():
    loops = []

    async def later(completions, **_):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return [1.0] * len(completions)

    rewards = Rewards(later)

    async def notebook():
        return [rewards({"completions": ["a"]}) for _ in range(2)]

    assert asyncio.run(notebook()) == [[1.0], [1.0]]
    assert rewards({"completions": ["a", "b"]}) == [1.0, 1.0]
    assert len(set(map(id, loops))) == 1


def test_a_reward_by_name_is_judged_as_on_the_other_back_ends(tmp_path, monkeypatch, caplog):
    """The answer is as it is, a cut response is wrong, and what fails, ends its process or hangs has no label."""
    body = """
        import os
        def judge(response, answer):
            assert isinstance(answer, list), answer
            if response == "ends":
                os._exit(3)
            while response == "hangs":
                pass
            return {"right": 1.0, "half": 0.5}[response]
    """
    (tmp_path / "raw_reward.py").write_text(textwrap.dedent(body))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "raw_reward", raising=False)
    rewards = Rewards("raw_reward:judge")
    rewards.functions[0]._tried = True  # the trial would find that it raises an error for an unknown response
    rewards.end_with(SimpleNamespace(eos_token_id=9, pad_token_id=0))
    texts = ["right", "right", "right", "half", "unknown", "ends", "hangs", "right"]
    ends = [[1, 9], [1, 2], [], [9], [9], [9], [9], [9]]
    given = {"completions": texts, "completion_ids": ends, "answer": [["assert f(1)"]] * 8}
    assert rewards(given) == [1.0, 0.0, 0.0, 0.5, None, None, None, 1.0]
    assert "raw_reward.py:9 KeyError" in caplog.text


def test_reserve_prompts_are_refused():
    with pytest.raises(UserError):
        AdaRollout(right, {"preset": "ada_seq_lean", "reserve_prompts": 4})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    if not PYTHON.is_file():
        pytest.skip("TRL is not here: `make bench-peers PEERS=--help` makes its interpreter")
    out = tmp_path_factory.mktemp("trl") / "results.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    command = [PYTHON, Path(__file__).with_name("real_trainer.py"), out]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=8 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_step_of_preset_grpo_is_a_step_of_trl(trained):
    own, theirs = trained["grpo"], trained["trl"]
    np.testing.assert_allclose(own["weights"], theirs["weights"], atol=2e-5)
    assert sum(own["batches"][0]["tokens"]) == sum(theirs["batches"][0]["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["balance", "chat", "estimation", "single"])
def test_the_real_trainer_gets_the_advantages_of_the_core(trained, name):
    for batch in trained[name]["batches"]:
        wanted = np.nan_to_num(np.array(batch["wanted"], float))
        np.testing.assert_allclose(batch["advantages"], wanted, atol=1e-6)
        assert batch["tokens"].count(0) >= 6  # the counterweights, one per group
    assert all("ada/samples_drawn" in step and step["loss"] != 0.0 for step in trained[name]["logged"])


@pytest.mark.slow
def test_uneven_groups_pass_through_trl(trained):
    assert any(step["ada/pool_size_max"] > step["ada/pool_size_mean"] for step in trained["estimation"]["logged"])


@pytest.mark.slow
def test_the_real_trainer_evaluates_with_the_rewards(trained):
    for name in ("balance", "chat"):
        assert 0.0 <= trained[name]["eval"]["eval_reward"] <= 1.0
