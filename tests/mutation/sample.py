"""Mutation testing: a seeded sample of one-edit mutants, each run against its room's tests.

    make mutants                                         # 300 mutants, one to two hours on two cores
    make mutants MUTANTS="--rooms core lab/plan --count 40 --seed 3"

mutmut makes the mutants of the Python files (its operators and its rules of what to leave alone); this script applies
one at a time, because mutmut's own runner forks the test process, which Ray and vLLM do not survive. Left out beside
what mutmut leaves out: texts for people (messages of exceptions and logs, help texts, strings with a space), since a
test of wording is not a test, and the drawings of the report, whose looks no test holds. slurm/lib.sh has operators of
its own (SHELL). A mutant's tests are those of its room, the files that name its module first. The sample is those of
the smallest hashes of seed and mutant, so it changes only where the code does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from place import ROOT, Place

ROOMS = ["nemo_ada", "slurm"]
DRAWING = "nemo_ada/lab/report/draw.py"
OF_SLURM = ["tests/slurm/test_lib.py", "tests/slurm/test_dry_run.py"]
SHELL = (
    (r"(?<=\s)-lt(?=\s)", "-le"), (r"(?<=\s)-gt(?=\s)", "-ge"), (r"(?<=\s)-eq(?=\s)", "-ne"),
    (r"(?<=\s)==(?=\s)", "!="), (r"(?<=\s)!=(?=\s)", "=="), (r"&&", "||"), (r"\|\|", "&&"),
    (r"(?<=\(\()([^()]*?) < ", r"\1 <= "), (r"(?<=\(\()([^()]*?) >= ", r"\1 > "),
    (r"\b(\d+)\b", lambda number: str(int(number[1]) + 1)), (r"! (?=\[|grep)", ""),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One edit of a file; `text()` is the whole file with it."""

    name: str
    file: str
    text: Callable[[], str]


def of_python(file: str) -> Iterator[Mutant]:
    """mutmut's mutants of a Python file, without texts for people."""
    import libcst as cst
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    module, mutations, _, _ = create_mutations(file, (ROOT / file).read_text(encoding="utf-8"))
    texts: set[int] = set()

    def walk(node: cst.CSTNode, for_people: bool) -> None:
        call = isinstance(node, cst.Call) and re.match(r"(log|logging|typer|warnings|Field)\b", code(node.func))
        if for_people or call or isinstance(node, cst.Raise | cst.FormattedString | cst.ConcatenatedString):
            texts.add(id(node))
        for child in node.children:
            walk(child, id(node) in texts)

    def code(node: cst.CSTNode) -> str:
        return " ".join(module.code_for_node(node).split())

    def text(mutation: Any) -> str:
        changed = deep_replace(module, mutation.original_node, mutation.mutated_node)
        assert isinstance(changed, cst.Module)
        return changed.code

    walk(module, False)
    seen: Counter[str] = Counter()
    for mutation in mutations:
        node, function = mutation.original_node, mutation.contained_by_top_level_function
        if (
            id(node) in texts
            or not isinstance(function, cst.FunctionDef)
            or (isinstance(node, cst.SimpleString) and " " in node.value)
        ):
            continue
        edit = f"{file} {function.name.value}: {difference(code(node), code(mutation.mutated_node))}"
        seen[edit] += 1
        yield Mutant(f"{edit} [{seen[edit]}]", file, partial(text, mutation))


def difference(old: str, new: str) -> str:
    """The edit on one short line: from a little before the first letter that differs."""
    same = next(
        (n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    start = max(same - 20, 0)
    return f"{old[start : start + 80]} -> {new[start : start + 80]}"


def of_shell(file: str) -> Iterator[Mutant]:
    """SHELL's mutants of a script, outside of comments."""
    source = (ROOT / file).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        code = line.split("  # ")[0]
        for pattern, replacement in () if code.lstrip().startswith("#") else SHELL:
            for match in re.finditer(pattern, code):
                new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
                changed = line[: match.start()] + new + line[match.end() :]
                whole = "".join([*lines[:number], changed, *lines[number + 1 :]])
                yield Mutant(f"{file}:{number + 1} {code.strip()} -> {changed.strip()}", file, partial(str, whole))


def mutants(rooms: list[str]) -> Iterator[Mutant]:
    """All mutants of the rooms."""
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.splitlines():
        if file.endswith(".py") and file != DRAWING:
            yield from of_python(file)
        elif file.endswith(".sh"):
            yield from of_shell(file)


def tests_of(file: str) -> list[str]:
    """The test files of the mutant's room, those whose names say its module first."""
    folders = OF_SLURM if file.startswith("slurm") else [f"tests/{Path(file).parts[1]}"]
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if Path(name).name.startswith("test_")]
    words = set(re.split(r"\W|_", Path(file).stem))
    return sorted(files, key=lambda name: -len(words & set(re.split(r"\W|_", Path(name).stem))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders or files of nemo_ada, or slurm")
    parser.add_argument("--count", type=int, default=300, help="mutants to try")
    parser.add_argument("--seed", type=int, default=7, help="chooses the sample")
    parser.add_argument("--places", type=int, default=2, help="mutants at a time")
    parser.add_argument("--seconds", type=float, default=600, help="after which a mutant counts as timed out")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "mutation" / "outcomes.jsonl")
    options = parser.parse_args()
    rooms = [room if room in ROOMS else f"nemo_ada/{room}" for room in options.rooms]
    everything = {mutant.name: mutant for mutant in mutants(rooms)}
    chosen = sorted(everything, key=lambda name: hashlib.sha256(f"{options.seed}:{name}".encode()).digest())
    chosen = chosen[: options.count]
    print(f"{len(chosen)} of {len(everything)} mutants, seed {options.seed}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.is_file() else []
    known = {row["name"]: row["outcome"] for row in done}
    places: SimpleQueue[Place] = SimpleQueue()
    for number in range(options.places):
        places.put(Place(f"place{number}"))

    def try_one(name: str) -> tuple[str, str]:
        if name in known:
            return name, known[name]
        mutant, place = everything[name], places.get()
        try:
            outcome = place.outcome(mutant.file, mutant.text(), tests_of(mutant.file), options.seconds)
        finally:
            places.put(place)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "outcome": outcome}) + "\n")
        return name, outcome

    with ThreadPoolExecutor(options.places) as pool:
        outcomes = dict(pool.map(try_one, chosen))
    for name in chosen:
        if outcomes[name] not in ("killed", "timeout"):
            print(f"{outcomes[name]}: {name}")
    counts = Counter(outcomes.values())
    caught = counts["killed"] + counts["timeout"]
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.most_common()))
    print(f"{caught} of {len(chosen)} noticed: {caught / max(len(chosen), 1):.1%}")


if __name__ == "__main__":
    main()
