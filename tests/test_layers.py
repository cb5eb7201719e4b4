"""The layers are one-way.

1. Static: every import statement of nemo_ada, also inside functions, stays in its layer (LAYERS), and each heavy
   library is imported only by the folders in HOME.
2. Dynamic: a fresh interpreter imports the layers from the bottom up; each adds to sys.modules only what it may load.
3. A new top-level module or folder must be given a layer here.
4. No two files import each other, also by a way over others, and files and functions stay short.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nemo_ada"

FIRST = {"errors", "standing", "trust"}
BASE = FIRST | {"by_name", "core", "core.sampling", "core.learning", "core.prompts", "run"}
CONFIG = BASE | {"config", "tasks", "verify"}
RULES = CONFIG | {"rules.facts", "rules", "rules.check"}
EVERYTHING = {"*"}

FILE_LINES, FUNCTION_LINES, MEAN_FUNCTION_LINES = 500, 80, 12
LONG_FILES: dict[str, int] = {}

# layer -> the other layers of nemo_ada that it may import, from the bottom up. A dotted name is a folder in a folder.
LAYERS = {
    "errors": set(),
    "standing": {"errors"},
    "trust": {"errors"},
    "by_name": FIRST,
    "core.sampling": {"errors", "core"},  # of core itself: arrays, metrics, seeds
    "core.learning": {"errors", "by_name", "core", "core.prompts", "core.sampling"},
    "core.prompts": {"errors", "core"},
    "core": {"errors", "core.sampling", "core.learning", "core.prompts"},
    "run": FIRST | {"by_name"},
    "verify": BASE,
    "tasks": BASE | {"verify"},
    "config": BASE,
    "rules.facts": CONFIG,
    "rules": CONFIG | {"rules.facts"},
    "cpu": CONFIG,
    "rules.check": CONFIG | {"rules.facts", "rules", "cpu"},  # what the CPU's trainer refuses, inside a function
    "nemo": CONFIG | {"rules.facts", "rules"},
    "trl": CONFIG,
    "vllm": set(),
    "lab": RULES | {"cpu"},  # the CPU's engine, on first use
    "rehearsal": RULES | {"lab"},
    "cli": EVERYTHING,
}
# library -> the layers that may import it
HOME = {
    "nemo_rl": {"nemo", "rehearsal"},
    "ray": {"cpu", "nemo", "rehearsal"},  # NeMo-RL's environments and workers are its actors
    "vllm": {"cpu", "rehearsal", "vllm"},
    "megatron": {"cpu", "rehearsal"},
    "torch": {"cpu", "nemo", "rules.check", "rehearsal"},
}
HEAVY = set(HOME)
# Layers whose import may load heavy libraries; every other one, the command line too, must start without them.
MAY_BE_HEAVY = {"cpu", "nemo", "vllm"}


def layer_of(path, package=PACKAGE):
    """The layer of a module file: the longest name in LAYERS that its path begins with, else its first component."""
    return layer_of_name(".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"))


def layer_of_name(name):
    """The layer of a module by its dotted name below the package."""
    parts = name.split(".")
    return next((".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in LAYERS), parts[0])


def imported_names(source, module, is_package):
    """Absolute dotted names of all import statements, wherever they stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def violations(package):
    """Every import that leaves its layer, as 'file imports name'."""
    found = []
    for relative, names in names_by_module(package):
        layer = layer_of(package.parent / relative, package)
        allowed = {"errors"} if layer == "__init__" else LAYERS.get(layer, set()) | {layer}
        for name in names:
            parts = name.split(".")
            outside = parts[0] in HOME and layer not in HOME[parts[0]]
            inside = parts[0] == "nemo_ada" and len(parts) > 1 and "*" not in allowed
            upward = inside and layer_of_name(".".join(parts[1:])) not in allowed | {"__version__"}
            if outside or upward:
                found.append(f"{relative} imports {name}")
    return found


def names_by_module(package):
    """Module file, relative to the package's parent -> absolute names of its imports."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package.parent)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield relative, list(imported_names(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"))


def layers_present():
    return sorted({layer_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"})


IMPORT_ALL = """
import importlib, json, pkgutil, sys
before, loaded = set(sys.modules), {}
for layer, with_submodules, apart in json.loads(sys.argv[1]):
    package = importlib.import_module("nemo_ada." + layer)
    if with_submodules and hasattr(package, "__path__"):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            inside = any(f"{info.name}.".startswith(f"nemo_ada.{other}.") for other in apart)
            if not info.name.endswith("__main__") and not inside:
                importlib.import_module(info.name)
    loaded[layer] = sorted(set(sys.modules) - before)
    before = set(sys.modules)
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded():
    """layer -> modules that its import added, in one fresh interpreter that imports them in the order of LAYERS."""
    present = sorted(
        set(LAYERS) & set(layers_present()), key=lambda layer: (layer in MAY_BE_HEAVY, list(LAYERS).index(layer))
    )
    plan = [
        (layer, layer not in MAY_BE_HEAVY, [name for name in LAYERS if name.startswith(f"{layer}.")])
        for layer in present
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(plan)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return {layer: set(names) for layer, names in json.loads(done.stdout.splitlines()[-1]).items()}


def test_every_import_statement_stays_in_its_layer():
    assert violations(PACKAGE) == []


def test_every_module_has_a_layer():
    assert set(layers_present()) <= set(LAYERS), "add the new module to LAYERS with what it may import"


def test_the_static_check_sees_hidden_relative_and_heavy_imports(tmp_path):
    core = tmp_path / "nemo_ada" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("from ..cpu.learner import shim\n")
    (core / "a.py").write_text("def f():\n    import torch.nn\n    from nemo_ada.config import load\n")
    (core / "b.py").write_text("from .a import f\nfrom nemo_ada.errors import UserError\nimport numpy\n")
    assert violations(tmp_path / "nemo_ada") == [
        "nemo_ada/core/__init__.py imports nemo_ada.cpu.learner.shim",
        "nemo_ada/core/a.py imports torch.nn",
        "nemo_ada/core/a.py imports nemo_ada.config.load",
    ]


def test_the_rehearsal_stands_apart():
    """Only its command imports it, and few of its modules import other rooms of ours."""
    inside = PACKAGE.relative_to(ROOT) / "rehearsal"
    importers, ours = set(), {}
    for relative, names in names_by_module(PACKAGE):
        layers = {layer_of_name(name.removeprefix("nemo_ada.")) for name in names if name.startswith("nemo_ada.")}
        if relative.is_relative_to(inside):
            ours[str(relative.relative_to(inside).with_suffix(""))] = layers - {"errors", "run", "config", "rehearsal"}
        elif "rehearsal" in layers:
            importers.add(str(relative))
    assert importers == {"nemo_ada/cli/rehearse.py"}
    beyond = {
        "command": {"rules", "rules.check", "rules.facts"},
        "fit": {"rules", "rules.facts"},
        "gpu": {"rules", "rules.facts"},
        "installation": {"rules.facts"},
        "model": {"rules.facts"},
        "report": {"rules"},
        "runs": {"lab", "rules.facts"},
        "shrink": {"core.sampling"},
        "standins/responses": {"lab"},
        "tables": {"lab", "rules.facts"},
    }
    assert {module: layers for module, layers in ours.items() if layers} == beyond


@pytest.mark.parametrize("layer", [name for name in layers_present() if name not in MAY_BE_HEAVY])
def test_a_light_layer_loads_nothing_heavy_and_nothing_above_it(layer, loaded):
    assert HEAVY & {name.partition(".")[0] for name in loaded[layer]} == set()
    allowed = LAYERS[layer] | {layer, *(name for name in LAYERS if name.startswith(f"{layer}."))}
    names = {name.removeprefix("nemo_ada.") for name in loaded[layer] if name.startswith("nemo_ada.")}
    ours = {layer_of_name(name) for name in names if not layer.startswith(f"{name}.")}  # a folder loads its parent
    assert "*" in allowed or ours <= allowed


def test_the_core_loads_numpy_and_the_standard_library_only(loaded):
    names = set().union(*(names for layer, names in loaded.items() if layer.partition(".")[0] in ("core", "errors")))
    tops = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"numpy", "nemo_ada"}
    assert {name for name in tops if name[0] != "_"} == set()


def test_the_back_ends_do_not_load_each_other(loaded):
    order = list(loaded)
    for layer, other in (("cpu", "nemo"), ("nemo", "cpu")):
        before = set().union(*(loaded[name] for name in order[: order.index(layer)] if name != other))
        assert not {name for name in before | loaded[layer] if f"{name}.".startswith(f"nemo_ada.{other}.")}


def test_what_a_job_imports_is_nothing_of_lab_cpu_or_rehearsal():
    """Everything that `import nemo_ada.nemo.install` may load, also later, inside functions."""
    names = {}
    for relative, imported in names_by_module(PACKAGE):
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        names[module] = imported
    reached, waiting = set(), ["nemo_ada.nemo.install"]
    while waiting:
        module = waiting.pop()
        found = {".".join(name.split(".")[:n]) for name in names.get(module, ()) for n in range(2, name.count(".") + 2)}
        fresh = (found & names.keys()) - reached
        reached |= fresh
        waiting += fresh
    assert "nemo_ada.core.sampler" in reached
    rooms = {name.split(".")[1] for name in reached}
    assert rooms <= {
        "by_name",
        "core",
        "config",
        "errors",
        "nemo",
        "rules",
        "run",
        "standing",
        "tasks",
        "trust",
        "verify",
    }


def test_files_and_functions_stay_short():
    files, functions, lengths = {}, {}, []
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if text.count("\n") > LONG_FILES.get(name, FILE_LINES):
            files[name] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append(node.end_lineno - node.lineno + 1)
                if lengths[-1] > FUNCTION_LINES:
                    functions[f"{name}: {node.name}"] = lengths[-1]
    assert (files, functions) == ({}, {}) and sum(lengths) / len(lengths) < MEAN_FUNCTION_LINES


def test_no_two_files_import_each_other():
    """Also not over others, and not inside functions. A folder's __init__ is loaded first anyway, so it is left out."""
    imports = {}
    for relative, names in names_by_module(PACKAGE):
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        imports[module] = {".".join(name.split(".")[:n]) for name in names for n in range(2, name.count(".") + 2)}
    graph = {
        module: {name for name in found & imports.keys() if name != module and not module.startswith(f"{name}.")}
        for module, found in imports.items()
    }
    while leaves := {module for module, found in graph.items() if not found & graph.keys()}:
        graph = {module: found for module, found in graph.items() if module not in leaves}
    assert graph == {}, "these files import each other, or import some that do"
