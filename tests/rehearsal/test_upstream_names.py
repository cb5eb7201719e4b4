"""Each name that a stand-in replaces, or that is observed, still exists upstream.

torch and vLLM: as installed here, looked at in a child process. NeMo-RL, Megatron-Bridge and
megatron-core: from source.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_ada.rehearsal import installation, observe
from nemo_ada.rehearsal.standins import FOR_CPU, OF_RUNS, OF_SLICES
from nemo_ada.rehearsal.standins.replacing import Change

CHANGES = [change for replacements in (*FOR_CPU, *OF_SLICES, *OF_RUNS) for change in replacements.changes]
LOOK = """
import functools, importlib, json, sys
missing = []
for module, name in json.load(sys.stdin):
    try:
        functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        missing.append((module, name))
print(json.dumps(missing))
"""
CONTROLLER = "nemo_rl.algorithms.single_controller_utils"
IN_SOURCE = ("nemo_rl", "megatron.bridge", "megatron.core")


def definitions(module: Path) -> set[str]:
    """Dotted names that a module's source binds at its top level, and in its classes."""
    return set(_bound(ast.parse(module.read_text(encoding="utf-8")).body))


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in _bound(node.body))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Try | ast.If):
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            yield from _bound([*node.body, *node.orelse, *handlers])


def sources() -> list[Path]:
    try:
        installed = installation.find()
    except Exception as error:  # noqa: BLE001 - the reason of a skip
        pytest.skip(str(error))
    return [installed.home, installed.bridge, installed.megatron]


def names_in_source(module: str) -> set[str]:
    relative = Path(*module.split("."))
    for root in sources():
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return definitions(path)
    raise AssertionError(f"{module} does not exist upstream")


@pytest.mark.parametrize(
    "change",
    [change for change in CHANGES if change.module.startswith(IN_SOURCE)],
    ids=lambda change: f"{change.module}:{','.join(change.names)[:40]}",
)
def test_every_replaced_name_exists_in_nemo_rls_checkout(change: Change) -> None:
    assert [name for name in change.names if name not in names_in_source(change.module)] == []


@pytest.mark.slow  # imports torch, vLLM and Ray in a child: this process must not
def test_every_replaced_name_exists_in_the_libraries_installed_here() -> None:
    changes = [change for change in CHANGES if not change.module.startswith(IN_SOURCE)]
    here = [change for change in changes if importlib.util.find_spec(change.module.partition(".")[0])]
    wanted = [(change.module, name) for change in here for name in change.names]
    child = subprocess.run(
        [sys.executable, "-c", LOOK], input=json.dumps(wanted), capture_output=True, text=True, check=True
    )
    assert wanted and json.loads(child.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(("phase", "module", "dotted"), observe.FUNCTIONS)
def test_every_observed_function_exists(phase: str, module: str, dotted: str) -> None:
    if module == CONTROLLER and not any(
        (root / Path(*module.split("."))).with_suffix(".py").is_file() for root in sources()
    ):
        pytest.skip("this NeMo-RL has no single controller")
    assert dotted in names_in_source(module)
