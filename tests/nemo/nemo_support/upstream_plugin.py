"""Pytest plugin that runs NeMo-RL's own unit tests on a CPU machine, outside its containers.

Upstream's ``tests/unit/conftest.py`` starts a GPU cluster. With ``--noconftest`` and this plugin its CPU tests run:
the plugin gives them Python 3.11 compatible typed dicts and a private Ray. From a NeMo-RL checkout::

    PYTHONPATH=<checkout>:<this project>/tests/nemo python -m pytest --noconftest -p nemo_support.upstream_plugin \
        tests/unit/algorithms/test_grpo.py
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from nemo_support.compat import use_typing_extensions_typed_dict
from nemo_support.private_ray import private_ray

_running = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    use_typing_extensions_typed_dict()
    _running.enter_context(private_ray())


def pytest_unconfigure(config: pytest.Config) -> None:
    _running.close()
