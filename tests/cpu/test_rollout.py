"""The rollout alone, on a scripted engine: what it asks of the engine, and which responses count as right."""

from __future__ import annotations

import itertools
from concurrent.futures import Future

import pytest

from nemo_ada.core.sampler import AdaSampler
from nemo_ada.cpu import rollout as embedded
from nemo_ada.cpu.engine.vllm_engine import EngineConfig, FinishReason
from nemo_ada.errors import FailedResponsesError
from nemo_ada.verify.verdict import Verdict
from tests.cpu.scripted_engine import ScriptedEngine


@pytest.fixture
def opened(make, task, monkeypatch):
    """opened(reason, *overrides): a rollout with its engine, as the trainer opens it."""

    def open_rollout(reason: FinishReason, *overrides: str) -> tuple[embedded.Rollout, ScriptedEngine]:
        config = make("rollout", "reinforce_ada.preset=grpo", *overrides)
        encode = task.tokenizer.encode
        prompts = (*task.splits().train, *task.splits().heldout)
        answers = {tuple(encode(prompt.text)): encode(prompt.answer) for prompt in prompts}
        end = [task.tokenizer.eos_id] if reason == "stop" else []
        engines: list[ScriptedEngine] = []

        def respond(prompt: list[int]) -> tuple[list[int], FinishReason]:
            return answers[tuple(prompt)] + end, reason

        def engine(engine_config: EngineConfig) -> ScriptedEngine:
            engines.append(ScriptedEngine(respond, engine_config))
            return engines[-1]

        monkeypatch.setattr(embedded, "Engine", engine)
        rollout = embedded.Rollout(config.task, config.base.cache_dir)
        sampler: AdaSampler = config.reinforce_ada.sampler(4, 4, run_seed=0, features=1)
        generation = config.policy.generation.model_copy(update={"max_new_tokens": 4})
        rollout.open("no model", sampler, config.policy.model_copy(update={"generation": generation}))
        return rollout, engines[0]

    return open_rollout


@pytest.mark.parametrize(("reason", "reward"), [("stop", 1.0), ("length", 0.0)])
def test_only_a_right_answer_that_ended_by_itself_is_rewarded(opened, reason, reward):
    rollout, _ = opened(reason)
    data = rollout.sample(1, [0, 1], 0)
    assert data.metrics["ada/pass_rate"] == reward
    scores = rollout.evaluate([0, 1], 3, 1.0, 0)
    assert (scores.reward_PK == reward).all()
    first = rollout._task.splits().heldout[0]
    kept = {"problem": first.text, "reference": first.answer, "response": first.answer, "reward": reward}
    assert scores.samples[0] == kept and len(scores.samples) == 2
    assert (rollout.measure_train([0, 1], 3, 0).reward_PK == reward).all()


def test_training_samples_at_the_configured_temperature_and_evaluation_at_its_own(opened):
    rollout, engine = opened("stop", "policy.generation.temperature=0.6")
    rollout.sample(1, [0, 1], 0)
    assert {sampling.temperature for sampling in engine.samplings} == {0.6}
    assert {sampling.max_new_tokens for sampling in engine.samplings} == {4}
    engine.samplings.clear()
    rollout.evaluate([0], 2, 0.3, 0)
    rollout.measure_train([0], 2, 0)
    assert [sampling.temperature for sampling in engine.samplings] == [0.3, 1.0]


def test_a_verifier_that_fails_now_and_then_makes_answers_wrong_and_one_that_fails_often_ends_the_run(
    opened, monkeypatch
):
    rollout, _ = opened("stop")
    submit = rollout._task.submit

    def failing(first: int) -> None:
        calls = itertools.count()

        def submitted(*answer):
            return Verdict(None, "verifier_timeout") if next(calls) < first else submit(*answer)

        monkeypatch.setattr(rollout._task, "submit", submitted)

    failing(3)
    scores = rollout.evaluate([0, 1], 4, 1.0, 0)
    assert scores.reward_PK.tolist() == [[0.0, 0.0, 0.0, 1.0], [1.0] * 4] and scores.without_label == 3
    failing(4)
    with pytest.raises(FailedResponsesError, match=r"4 of 8 responses of an evaluation .*verifier_timeout: 4"):
        rollout.evaluate([0, 1], 4, 1.0, 0)


def test_an_answer_that_hangs_in_the_verifier_does_not_stop_the_engine(opened, monkeypatch):
    rollout, engine = opened("stop")
    submit, asked, hanging = rollout._task.submit, [], Future()

    def hangs_once(*answer):
        asked.append(answer)
        return hanging if len(asked) == 1 else submit(*answer)

    def step():
        if len(asked) == 7:  # seven responses are drawn, six of them verified
            hanging.set_result(Verdict(None, "verifier_timeout"))
        return drawn()

    drawn = engine.step
    monkeypatch.setattr(rollout._task, "submit", hangs_once)
    monkeypatch.setattr(engine, "step", step)
    monkeypatch.setattr(embedded, "VERDICT_GRACE_S", 0.01)
    data = rollout.sample(1, [0, 1], 0)
    assert data.metrics["ada/failed/verifier_timeout"] == 1
    assert data.metrics["ada/samples_in_pools"] == 8 and engine.steps == 9  # the failed one is drawn again
