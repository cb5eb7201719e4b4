"""Mutation testing of nemo_ada/core with mutmut, on a seeded sample of its mutants.

`make mutants-core` runs it; recipes/results/mutants.json holds outcomes.

mutmut makes one small change at a time (an operator, a number, an argument) and runs the tests that reach the changed
function. A mutant that passes them all has survived: a test is missing, or the change makes no difference.

This file is two things. Run, it copies the core and its tests into .cache/mutation, chooses mutants, hands them to
mutmut and prints those that were not killed. Loaded by pytest there (`-p`, see [tool.mutmut]), it makes a run depend on
nothing but the mutant: no caches from before, and the same examples in property tests each time.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache" / "mutation"
STATUS = {0: "survived", 1: "killed", 3: "killed", 33: "reached by no test", -24: "timeout", 36: "timeout"}

settings.register_profile(
    "mutation", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)


def pytest_runtest_setup(item):
    """Forget what functools remembers: mutmut forks from a process that has run the tests without a mutant."""
    modules = [item.getparent(pytest.Module).obj]
    modules += [module for name, module in sys.modules.items() if name.startswith("nemo_ada.core.")]
    for module in modules:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def sample(count, seed, only):
    """Names of `count` mutants that begin with nemo_ada.core.<one of only>: those of the smallest seeded hashes, so a
    change in one function leaves the rest of the sample as it is."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    names = [
        f"{'.'.join(path.with_suffix('').parts)}.{name}"
        for path in sorted(Path("nemo_ada/core").rglob("*.py"))
        for name in mutate_file_contents(str(path), path.read_text("utf-8")).mutant_names
    ]
    names = [name for name in names if name.removeprefix("nemo_ada.core.").startswith(tuple(only))]
    print(f"{min(count, len(names))} of {len(names)} mutants, seed {seed}")
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())[:count]


def prepare():
    """A folder with the core, its tests and the settings, and nothing else."""
    shutil.rmtree(PLACE, ignore_errors=True)
    for part in ("nemo_ada/core", "tests/core"):
        shutil.copytree(ROOT / part, PLACE / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("nemo_ada/__init__.py", "nemo_ada/errors.py", "pyproject.toml"):
        shutil.copy(ROOT / part, PLACE / part)


def outcome(names):
    codes = {}
    for meta in Path("mutants").rglob("*.meta"):
        codes |= json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    return {name: STATUS.get(codes[name], f"exit code {codes[name]}") for name in names}


def main():
    parser = argparse.ArgumentParser(description="Mutation testing of nemo_ada/core")
    parser.add_argument("--count", type=int, default=300, help="mutants to try")
    parser.add_argument("--seed", type=int, default=7, help="chooses the sample")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of their names: stopping ledger.xǁ")
    parser.add_argument("--children", type=int, default=2, help="mutants at a time")
    options = parser.parse_args()
    prepare()
    os.chdir(PLACE)  # mutmut works on the folder that it is started in
    names = sample(options.count, options.seed, options.only)
    mutmut = Path(sys.executable).with_name("mutmut")
    subprocess.run([mutmut, "run", "--max-children", str(options.children), *names], check=True)
    found = outcome(names)
    for name, status in sorted(found.items()):
        if status != "killed":
            print(f"\n{status}: {name}", flush=True)
            subprocess.run([mutmut, "show", name], check=True)
    print("\n" + ", ".join(f"{number} {status}" for status, number in Counter(found.values()).most_common()))


if __name__ == "__main__":
    main()
