"""bench_async.py against closed forms: responses of one length, so that every step of the model is known."""

from __future__ import annotations

import pytest

from tests.lazy import Lazy

bench = Lazy("bench_async")
LENGTH = 130  # of a wrong answer: 1.3 times the median


def found(method, *options):
    short = "--sigma=0 --median=100 --steps=8 --prompts=16 --slots=4096 --refit=20"
    return bench.measured(bench.arguments([*short.split(" "), "--beta", "1", "9", *options]), method, 0)


@pytest.mark.parametrize("update", [10, 500])
def test_a_synchronous_step_is_sampling_then_update_then_refit(update):
    assert found("grpo, synchronous", "--update", str(update)).steps == LENGTH + update + 20


@pytest.mark.parametrize("age", [1, 3])
def test_an_asynchronous_step_takes_as_long_as_the_slower_of_both_sides(age):
    assert found("grpo, asynchronous", "--update", "500", "--age", str(age)).steps == 500 + 20
    fast = found("grpo, asynchronous", "--update", "10", "--age", str(age)).steps
    assert LENGTH / (age + 1) <= fast < LENGTH + 10 + 20


def test_adaptive_sampling_has_more_signal_in_both_modes_and_the_filter_leaves_none_without():
    grpo, ada = (found(f"{name}, synchronous", "--update", "10") for name in ("grpo", "ada_seq_balance"))
    assert ada.zero_signal < grpo.zero_signal and ada.steps > grpo.steps
    ahead = found("ada_seq_balance, asynchronous", "--update", "10")
    assert ahead.zero_signal == pytest.approx(ada.zero_signal, abs=0.2)
    assert found("grpo, dynamic sampling, synchronous", "--update", "10").zero_signal == 0.0


@pytest.mark.parametrize("loop", ["ready_first", "weight_fifo"])
def test_with_responses_of_one_length_a_sampler_of_the_single_controller_is_the_older_loop(loop):
    """All groups of a batch end together, so nothing is ready earlier than in order."""
    update = ("--update", "500", "--age", "1")
    assert found(f"grpo, {loop}", *update) == found("grpo, asynchronous", *update)
