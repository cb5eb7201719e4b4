"""What SECURITY.md promises about the code itself.

1. Nothing in nemo_ada/, recipes/ or slurm/ unpickles, evaluates or passes text to a shell: by the syntax tree, so that
   a comment or a new spelling of an import does not hide it.
2. Messages between processes of our own are the only exception, and the places are listed.
3. Every direct dependency has a bound.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("nemo_ada", "recipes", "slurm") for path in (ROOT / folder).rglob("*.py"))

UNPICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "copyreg"}
EVALUATING = {"eval", "exec", "compile", "__import__", "execfile", "input"}
SHELLS = {"os.system", "os.popen", "pty.spawn", "subprocess.getoutput", "subprocess.getstatusoutput"}
# Calls that unpickle what another process of this run sent, and the files that may make them.
FROM_OWN_PROCESSES = {
    "recv": {"nemo_ada/verify/process.py", "nemo_ada/verify/server.py"},  # a pipe between parent and child
    "gather_object": {"nemo_ada/embedded/learner/rank.py"},  # gloo on the loopback device
    "all_gather_object": set[str](),
    "broadcast_object_list": set[str](),
    "scatter_object_list": set[str](),
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute, else the last part that is known."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else node.attr
    return ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def safe_loaders(tree: ast.AST) -> set[str]:
    """Names of classes of this file whose bases are all SafeLoaders."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.bases and all(dotted(b).endswith("SafeLoader") for b in node.bases)
    }


def violations(source: str, place: str) -> Iterator[str]:
    tree = ast.parse(source)
    loaders = safe_loaders(tree) | {"SafeLoader", "CSafeLoader"}
    for node in ast.walk(tree):
        where = f"{place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for name in (alias.name.partition(".")[0] for alias in node.names):
                if name in UNPICKLING:
                    yield f"{where} imports {name}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in UNPICKLING:
            yield f"{where} imports {node.module}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            last = name.rpartition(".")[2]
            if name in EVALUATING or name in SHELLS:
                yield f"{where} calls {name}"
            if constant(keyword(node, "shell")) not in (None, False):
                yield f"{where} passes shell=True"
            if name.startswith("torch.") and last == "load" and constant(keyword(node, "weights_only")) is not True:
                yield f"{where} loads with torch and without weights_only=True"
            if constant(keyword(node, "weights_only")) is False:
                yield f"{where} passes weights_only=False"
            for option in ("allow_pickle", "trust_remote_code"):
                if keyword(node, option) is not None and constant(keyword(node, option)) is not False:
                    yield f"{where} passes {option}"
            if constant(keyword(node, "verify")) is False or last == "_create_unverified_context":
                yield f"{where} turns certificates off"
            if name in ("yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"):
                yield f"{where} calls {name}"
            if name in ("yaml.load", "yaml.load_all"):
                loader = keyword(node, "Loader") or (node.args[1] if len(node.args) > 1 else None)
                if loader is None or dotted(loader).rpartition(".")[2] not in loaders:
                    yield f"{where} loads YAML without a safe loader"
            if (
                last in FROM_OWN_PROCESSES
                and isinstance(node.func, ast.Attribute)
                and place not in FROM_OWN_PROCESSES[last]
            ):
                yield f"{where} calls {last}, which unpickles"


def test_nothing_unpickles_evaluates_or_asks_a_shell() -> None:
    assert len(SOURCES) > 100, "the files are there"
    assert [
        found for path in SOURCES for found in violations(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ] == []


BAD = """
import pickle, os.path
from joblib import load
import subprocess, torch, yaml, numpy as np
class Mine(yaml.Loader): pass
class Fine(yaml.SafeLoader): pass
def f(x):
    eval(x); os.system(x); subprocess.run(x, shell=True)
    torch.load(x); torch.load(x, weights_only=False); torch.load(x, weights_only=True)
    yaml.load(x); yaml.load(x, Mine); yaml.load(x, Fine); yaml.unsafe_load(x)
    np.load(x, allow_pickle=True); np.load(x, allow_pickle=False)
    AutoModel.from_pretrained(x, trust_remote_code=True); x.recv(); requests.get(x, verify=False)
"""


SEEN = [
    *["imports pickle", "imports joblib", "calls eval", "calls os.system", "passes shell=True"],
    *["loads with torch and without weights_only=True"] * 2,
    *["passes weights_only=False", "passes allow_pickle", "passes trust_remote_code", "turns certificates off"],
    *["loads YAML without a safe loader"] * 2,
    *["calls yaml.unsafe_load", "calls recv, which unpickles"],
]


def test_the_audit_sees_what_it_looks_for() -> None:
    found = [re.sub(r"^bad.py:\d+ ", "", text) for text in violations(BAD, "bad.py")]
    assert sorted(found) == sorted(SEEN)


def test_every_dependency_has_a_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    stubs = "types-"  # for mypy, no code
    assert [name for name in wanted if not re.search(r"[<>=]=?\s*\d", name) and not name.startswith(stubs)] == []
