"""Processes start in one way: no module of the working folder comes first, and the environment is a list.

1. An audit of the source finds any other start, in the package, in the scripts of jobs, in what they pass to Python.
2. Files with the names of libraries lie in the working folder, and no child and no actor of Ray runs them.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from pathlib import Path

import pytest

from nemo_ada.run import start
from tests.people import OTHER
from tests.planted import PEOPLE, TOKEN, plant, ran, run

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nemo_ada"
LIBRARIES = ("subprocess", "multiprocessing", "pty", "runpy")
STARTS = re.compile(
    r"os\.(?:system|popen|fork|forkpty|posix_spawnp?|startfile|exec\w+|spawn\w+)|ray\.init|pty\.spawn|Popen"
    r"|asyncio\.create_subprocess_\w+|ProcessPoolExecutor|\w+\.get_context"
)
INTERPRETER = re.compile(r"(?:str\()?(?:\w+ or )?(?:sys\.executable|python|interpreter)\)?")
ALLOWED = {
    "run/start.py": {"import subprocess", "Popen"},
    "verify/server.py": {"os.fork"},  # workers of a server that has started safely
    "cpu/processes/private_ray.py": {"ray.init"},  # in a listed environment, without the working folder
    "rehearsal/standins/ray_placement.py": {"ray.init"},  # the same, in the place of NeMo-RL's own start
    "rehearsal/tables.py": {  # listed, too
        "import multiprocessing", "ProcessPoolExecutor", "multiprocessing.get_context",
    },
}  # fmt: skip


def starts(source: str) -> set[str]:
    """What starts processes in a module: imports of libraries for it, and calls."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        found |= {f"import {name}" for name in names if name in LIBRARIES}
        if isinstance(node, ast.Call) and STARTS.fullmatch(ast.unparse(node.func)):
            found.add(ast.unparse(node.func))
    return found


def unsafe(source: str) -> list[int]:
    """Lines in which Python gets -c or -m, or a list begins with an interpreter, without -P."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List) and node.elts:
            words = [ast.unparse(word) for word in node.elts]
            if any(map(INTERPRETER.fullmatch, words)) and "'-P'" not in words:
                found.append(node.lineno)
    return found


def test_no_module_starts_a_process_by_itself():
    found = {
        str(path.relative_to(PACKAGE)): what
        for path in sorted(PACKAGE.rglob("*.py"))
        if (what := starts(path.read_text(encoding="utf-8")) - ALLOWED.get(str(path.relative_to(PACKAGE)), set()))
    }
    assert found == {}


def test_every_interpreter_is_told_to_leave_the_working_folder_out():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "slurm").glob("*.py")]
    assert {str(path): lines for path in files if (lines := unsafe(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "source",
    ["import subprocess", "from subprocess import run", "os.execvp(a, b)", "os.system(x)", "ray.init()", "os.fork()",
     "from multiprocessing import Process", "asyncio.create_subprocess_exec(x)"],
)  # fmt: skip
def test_the_audit_sees_each_of_them(source):
    assert starts(source)


def test_the_audit_sees_an_interpreter_without_the_option():
    assert unsafe('run([sys.executable, "-c", x])') and unsafe("[interpreter, script]")
    assert not unsafe('run([sys.executable, "-P", "-c", x])')


def test_a_child_gets_no_secret_and_no_variable_that_is_not_listed(monkeypatch):
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PRIVATE_NOTE", "MY_SETTING", "BASH_ENV", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/mine{os.pathsep}{os.pathsep}")
    got = start.make_environment()
    assert got["HF_HOME"] == "/models" and "" not in got["PYTHONPATH"].split(os.pathsep)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PRIVATE_NOTE", "MY_SETTING", "BASH_ENV"} & got.keys()
    assert start.make_environment("HF_TOKEN")["HF_TOKEN"] == TOKEN
    monkeypatch.setenv("NEMO_ADA_PASS", "MY_SETTING NOT_SET")
    assert start.make_environment()["MY_SETTING"] == TOKEN
    before = dict(os.environ)
    with start.limit_environment():
        assert "HF_TOKEN" not in os.environ
    assert dict(os.environ) == before


def test_children_find_the_package_and_nothing_else_of_the_checkout(monkeypatch):
    """It is often somebody's working folder, where a download may hold a module with the name of a library."""
    for given in ("", str(ROOT / "lib")):
        monkeypatch.setenv("PYTHONPATH", given)
        assert str(ROOT) not in start.make_environment()["PYTHONPATH"].split(os.pathsep)
    assert [path.name for path in Path(start.find_import_path()).iterdir()] == ["nemo_ada"]
    for module, code in (("nemo_ada.errors", 0), ("tests.people", 1)):
        command = start.make_python_command(sys.executable, "-S", "-c", f"import {module}")
        assert start.run(command, env=start.make_environment(PYTHONPATH=start.find_import_path())).returncode == code


def modules(folder: Path, owner: int, *names: str) -> None:
    """Plant modules with the names of libraries. Who imports one leaves its name behind."""
    (folder / "ran").touch()
    (folder / "ran").chmod(0o666)
    text = (
        f"import os\nwith open({str(folder / 'ran')!r}, 'a') as out: out.write(__name__ + chr(10))\nraise ImportError\n"
    )
    for name in names:
        plant(folder, owner, **{f"{name}__py": text})


LIBRARY = (
    "json", "sympy", "megatron", "torch", "vllm", "safetensors", "numpy", "yaml", "nemo_ada", "huggingface_hub",
    "datasets", "transformers", "pydantic", "typing_extensions", "multiprocessing", "sitecustomize", "uvloop", "re",
    "math_verify", "hashlib", "ctypes", "socket",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("owner", PEOPLE)
def test_no_child_runs_a_module_of_the_working_folder(tmp_path, owner):
    tmp_path.chmod(0o1777 if owner else 0o755)
    modules(tmp_path, owner, *LIBRARY)
    for command in (["prepare", "configs/qwen2.5-math-7b.yaml"], ["check", "configs/cpu/mini_sudoku.yaml"]):
        run(*command, cwd=tmp_path, NEMO_RL_HOME=str(ROOT / "none"))
    done = start.run(
        start.make_python_command(sys.executable, "-c", "import json, re, numpy"), cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0 and ran(tmp_path) == "", ran(tmp_path)


@pytest.mark.parametrize("owner", PEOPLE)
def test_prepare_runs_no_module_of_the_working_folder(tmp_path, monkeypatch, owner):
    from nemo_ada.errors import UserError
    from nemo_ada.nemo.launch import prepare

    modules(tmp_path, owner, *LIBRARY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="not fetched"):
        prepare._run_child("fetch", [("o/m", "model", False)], {**os.environ, "HF_HUB_OFFLINE": "1"}, (), "not fetched")
    assert ran(tmp_path) == ""


@pytest.mark.long
@pytest.mark.parametrize("owner", PEOPLE)
def test_train_runs_no_module_of_the_working_folder_and_its_processes_have_no_token(tmp_path, owner):
    """Ray put the working folder first on the import path of its actors."""
    tmp_path.chmod(0o1777 if owner else 0o755)
    modules(tmp_path, owner, *LIBRARY)
    look = (
        "from pathlib import Path\nimport psutil\nfrom nemo_ada.cpu import stack\nbegin = stack.Stack.call\n"
        "def call(self, *a, **k):\n    for one in psutil.Process().children(recursive=True):\n"
        "        if 'HF_TOKEN' in Path(f'/proc/{one.pid}/environ').read_text():\n"
        f"            open({str(tmp_path / 'ran')!r}, 'a').write(f'token in {{one.cmdline()}}')\n"
        "    return begin(self, *a, **k)\nstack.Stack.call = call\nfrom nemo_ada.cli.main import main\nmain()\n"
    )
    words = ["configs/cpu/mini_sudoku.yaml", f"run_dir={tmp_path / 'run'}", "grpo.max_num_steps=1"]
    command = [sys.executable, "-P", "-c", look, "train", *words]
    done = start.run(command, cwd=tmp_path, env={**start.make_environment(), "HF_TOKEN": TOKEN}, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ran(tmp_path) == "" and OTHER


def test_ray_finds_no_cluster_that_nobody_named_and_may_clear_its_cache():
    services = importlib.import_module("ray._private.services")
    own = services.find_gcs_addresses
    with start.join_named_cluster(services):
        assert services.find_gcs_addresses() == set() and services.find_bootstrap_address(None) is None
        services.find_gcs_addresses.cache_clear()  # ray.init does
    assert services.find_gcs_addresses is own
