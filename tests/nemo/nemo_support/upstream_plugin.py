"""Pytest plugin: NeMo-RL's own unit tests on a CPU machine, outside its containers, with our hooks installed.

    PYTHONPATH=<checkout>:<this project>/tests/nemo:<this project> python -m pytest --noconftest \\
        -p nemo_support.upstream_plugin tests/unit/algorithms/test_grpo.py

Seven names of the loop's module are ours during the whole session; the tests' configurations ask for other estimators,
for which the hooks must do what NeMo-RL does. Upstream's conftest would start a GPU cluster; here Ray is private.
"""

from __future__ import annotations

import importlib
import tempfile
from contextlib import ExitStack
from pathlib import Path

from nemo_support.compat import use_typing_extensions_typed_dict
from nemo_support.private_ray import private_ray

_running = ExitStack()


def pytest_configure(config):
    use_typing_extensions_typed_dict()
    _running.enter_context(private_ray())
    from nemo_ada.nemo.install import installed
    from nemo_ada.rules.facts.upstream import LOOP, PATCH_POINTS, ROLLOUTS

    standin = importlib.import_module("standin")
    loop = importlib.import_module(LOOP)
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory()))
    settings = standin.config(4, 4, {"preset": "ada_seq_balance"})
    _running.enter_context(installed(settings, standin.Checkpointer(folder), loop, importlib.import_module(ROLLOUTS)))
    ours = [target.name for target in PATCH_POINTS if getattr(loop, target.name).__module__.startswith("nemo_ada")]
    if len(ours) != len(PATCH_POINTS):
        raise RuntimeError(f"only {ours} are hooked")


def pytest_unconfigure(config):
    _running.close()
