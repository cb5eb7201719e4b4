"""What SECURITY.md promises about the code itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from nemo_ada.run.yaml_file import _Loader
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / name for name in ("nemo_ada", "recipes", "slurm")]
# exec, eval, pickle (two rules), shells (two rules), YAML's full loaders, certificates (two rules)
RULES = "S102,S307,S301,S403,S602,S605,S506,S501,S323"
ALLOWED = {
    ("nemo_ada/run/yaml_file.py", "S506"),  # its loader is a SafeLoader, which ruff cannot see
}
PATTERNS = [
    r"(?:import|from) (?:_pickle|cloudpickle|joblib|marshal|copyreg)\b",
    r"(?<![\w.])(?:compile|__import__|input)\(",
    r"yaml\.(?:unsafe|full)_load",
    r"torch(?:\.\w+)*\.load\((?!.*weights_only=True)",
    r"(?:allow_pickle|trust_remote_code)=(?!False)",
    r"weights_only=False",
    r"\.(?:recv|gather_object|all_gather_object|broadcast_object_list|scatter_object_list)\(",
]
UNPICKLES_OWN_MESSAGES = {
    "nemo_ada/cpu/learner/rank.py",  # gloo on the loopback device
}
READS_BYTES = {"nemo_ada/verify/process.py", "nemo_ada/verify/server.py"}  # recv of a socket, which unpickles nothing


def violations(*folders: Path) -> set[tuple[str, str]]:
    """(file, rule or pattern) of everything that is forbidden."""
    options = ["--isolated", "--preview", "--no-cache", "--select", RULES, "--output-format", "json"]
    command = [sys.executable, "-m", "ruff", "check", *options, "--config", "line-length=320", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    found = {(entry["filename"], entry["code"]) for entry in json.loads(done.stdout)}
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found |= {(str(path), pattern) for pattern in PATTERNS if re.search(pattern, text)}
    return {(name.removeprefix(f"{ROOT}/"), rule) for name, rule in found}


def test_nothing_unpickles_evaluates_or_asks_a_shell() -> None:
    assert issubclass(_Loader, yaml.SafeLoader)
    assert violations(*FOLDERS) == ALLOWED | {(place, PATTERNS[-1]) for place in UNPICKLES_OWN_MESSAGES | READS_BYTES}


BAD = """import pickle
from shelve import open
eval(x)
exec(x)
import os; os.system(x)
import subprocess; subprocess.run(x, shell=True)
import yaml; yaml.load(x)
import yaml; yaml.load(x, yaml.Loader)
import requests; requests.get(x, verify=False, timeout=1)
import ssl; ssl._create_unverified_context()
from joblib import load
__import__(x)
yaml.unsafe_load(x)
torch.load(x)
torch.load(x, weights_only=False)
np.load(x, allow_pickle=True)
AutoModel.from_pretrained(x, trust_remote_code=True)
connection.recv()"""


def test_the_audit_sees_what_it_looks_for(tmp_path: Path) -> None:
    lines = BAD.splitlines()
    for number, line in enumerate(lines):
        (tmp_path / f"bad{number}.py").write_text(line)
    (tmp_path / "fine.py").write_text(
        "torch.load(x, weights_only=True); yaml.safe_load(x); np.load(x, allow_pickle=False)"
    )
    seen = {Path(name).stem for name, _ in violations(tmp_path)}
    assert seen == {f"bad{number}" for number in range(len(lines))}


def test_every_dependency_has_a_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    free = ("types-", "nemo-ada[")  # stubs for mypy have no code; an extra may name our own extras
    wanted = [name for name in (*project["dependencies"], *extras) if not name.startswith(free)]
    assert [name for name in wanted if not re.search(r"[<>=]=?\s*\d", name)] == []
