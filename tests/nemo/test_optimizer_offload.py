"""The optimizer's way to the CPU and back: the same values, each copy without waiting, and one wait at the end.

1. A worker's own function is replaced, and what it moves keeps all its bits.
2. Workers get it by Ray, and those that have no such function are counted as without it.
3. The functions that are replaced exist in the NeMo-RL that is there.
"""

import ast
import os
from pathlib import Path

import pytest

from nemo_ada.nemo.optimizer_offload import MOVES, make_replacement, move_through_pinned_memory

torch = pytest.importorskip("torch")


class Optimizer:
    """The states of two parameters, as Megatron's and torch's optimizers hold them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.state = {
            number: {"exp_avg": torch.randn(7, 5, generator=generator), "step": number} for number in range(2)
        }


class Worker:
    """A learner's worker, with its own way of moving the optimizer."""

    def __init__(self):
        self.optimizer = Optimizer()

    def move_optimizer(self, device):
        raise AssertionError("the worker's own function was called")


def test_a_worker_moves_its_optimizer_without_waiting_and_keeps_every_bit(monkeypatch):
    worker, calls, to = Worker(), [], torch.Tensor.to
    before = {number: state["exp_avg"].clone() for number, state in worker.optimizer.state.items()}
    assert make_replacement()(worker)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **named: calls.append((args, named)) or to(self, *args))
    worker.move_optimizer("cpu")
    assert calls == [(("cpu",), {"non_blocking": True})] * 2
    for number, state in worker.optimizer.state.items():
        assert state["step"] == number and torch.equal(state["exp_avg"], before[number])


def test_a_worker_without_such_a_function_stays_as_it_is():
    assert not make_replacement()(object()) and move_through_pinned_memory(object()) == 0


def test_nemo_rl_has_the_functions_that_are_replaced():
    home = os.environ.get("NEMO_RL_HOME")
    if not home:
        pytest.skip("NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
    workers = Path(home, "nemo_rl/models/policy/workers")
    found = {
        node.name
        for path in workers.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in MOVES
    }
    assert found == set(MOVES)
