"""What changed between two checkouts of NeMo-RL in the names that nemo_ada, or a plug-in, touches.

    python recipes/upstream/contract.py [OLD] NEW [--uses NAMES] [--run CONFIG] [--json FILE]

OLD is NEMO_RL_HOME's. Both checkouts are read as source. Nothing of them is imported, so any interpreter will do. Exit
codes: 0 nothing differs, 3 something differs, 2 user error.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nemo_ada
from nemo_ada.config.paths import locate_packaged
from nemo_ada.errors import UserError
from nemo_ada.rehearsal import observe
from nemo_ada.rehearsal.installation import BRIDGE, MEGATRON, SUBMODULE
from nemo_ada.rehearsal.standins import FOR_CPU
from nemo_ada.rules.facts import attributes, upstream
from nemo_ada.rules.facts.checkout import PACKAGE, Checkout, Function, describe_return, list_parameters
from nemo_ada.rules.facts.upstream import LOOP, MASTER_CONFIG
from nemo_ada.run.files import text_of, write_result
from nemo_ada.run.job_control import EXIT_DONE, EXIT_USER_ERROR
from nemo_ada.run.yaml_file import read_yaml

EXIT_DIFFERENT = 3
MAX_WIDTH = 160
HEADLINES = {
    "name": "Names",
    "parameters": "Parameters",
    "returned values": "Returned values, counted in the source",
    "key": "Configuration keys",
    "save state": "State of the loop in a checkpoint",
    "metric": "Metrics of the loop",
    "example": "Example configs that ours inherit from",
}


def contract(
    old: Path, new: Path, *, uses: Path | None, run: Path | None, out: Path | None, say: Callable[[str], None]
) -> int:
    """Compare two checkouts.

    Args:
        old: the checkout that the program was made for.
        new: the other checkout.
        uses: a plug-in's file of names; None for nemo_ada's own names.
        run: a cluster config that is rehearsed with both checkouts; None for the source alone.
        out: where the differences go as JSON.
        say: prints a line.

    Returns:
        The exit code: 0 where nothing differs, 3 where something does.

    Raises:
        UserError: a folder is not a checkout, or the file of names cannot be read.
    """
    started = time.monotonic()
    checkouts = Checkout(old), Checkout(new)  # first: they may be none
    names = own() if uses is None else listed(uses)
    result = differences(*checkouts, names, [] if uses else inherited_examples())
    for line in table(result, len(names), time.monotonic() - started):
        say(line)
    if out is not None:
        content = {
            "made_by": "recipes/upstream/contract.py",
            "old": str(old),
            "new": str(new),
            "differences": [asdict(one) for one in result],
        }
        write_result(out, json.dumps(content, indent=1), "--out")
    same = not result
    if run is not None:
        same = rehearsals(old, new, run, say) and same
    return EXIT_DONE if same else EXIT_DIFFERENT


def table(found: Sequence[NameDifference], names: int, seconds: float) -> list[str]:
    """Return the lines of the report, one headline per kind of difference."""
    lines = []
    for kind, headline in HEADLINES.items():
        of_kind = [one for one in found if one.kind == kind]
        if not of_kind:
            continue
        lines += [f"{headline} ({len(of_kind)})", ""]
        for one in of_kind:
            lines += [f"  {one.what}" + (f"  ({one.where})" if one.where else "")]
            lines += [f"    old: {_short(one.old)}", f"    new: {_short(one.new)}"]
        lines.append("")
    lines.append(f"{names} names compared, {len(found)} differences, {seconds:.1f} s")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= MAX_WIDTH else text[: MAX_WIDTH - 1] + "…"


def inherited_examples() -> list[Path]:
    """The files of NeMo-RL's examples that the configs of this package inherit from."""
    result = []
    for path in sorted(locate_packaged(Path("configs")).rglob("*.yaml")):
        content = read_yaml(path)
        bases = content.get("defaults", []) if isinstance(content, dict) else []
        for base in [bases] if isinstance(bases, str) else bases:
            _, found, rest = str(base).partition("examples/configs/")
            if found:
                result.append(Path(found) / rest)
    return result


def rehearsals(old: Path, new: Path, config: Path, say: Callable[[str], None]) -> bool:
    """Rehearse a config with each checkout, one step without a resume.

    A checkout with submodules is rehearsed with its own Megatron-Bridge and megatron-core. Another one takes those that
    the environment names.

    Returns:
        Whether both pass.
    """
    passed = {}
    for name, checkout in (("old", old), ("new", new)):
        command = [sys.executable, "-m", "nemo_ada.cli", "rehearse", str(config), "--steps", "1", "--no-resume"]
        environment = {**os.environ, "NEMO_RL_HOME": str(checkout)}
        if (checkout / SUBMODULE / "src").is_dir():
            environment = {key: value for key, value in environment.items() if key not in (BRIDGE, MEGATRON)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        passed[name] = done.returncode == 0
        lines = (done.stdout + done.stderr).strip().splitlines()
        verdict = next((line for line in lines if line.startswith(("passed", "failed"))), lines[-1] if lines else "")
        say(f"rehearsal with {name} ({checkout}): {'passed' if passed[name] else 'failed'}: {verdict}")
    return all(passed.values())


SAVE_STATE = f"{LOOP}.GRPOSaveState"
LOOPS = ("grpo_train", "async_grpo_train", "validate")
EXAMPLES = Path("examples/configs")
ABSENT, UNDECLARED = "does not exist", "not declared"


@dataclass(frozen=True, slots=True)
class NameDifference:
    """One thing that differs.

    Attributes:
        kind: `name`, `parameters`, `returned values`, `key`, `save state`, `metric` or `example`.
        what: the name, key or file.
        old: what the first checkout has.
        new: what the second checkout has.
        where: what touches the name; empty for what belongs to every run.
    """

    kind: str
    what: str
    old: str
    new: str
    where: str = ""


def differences(old: Checkout, new: Checkout, uses: Sequence[Use], bases: Iterable[Path] = ()) -> list[NameDifference]:
    """Everything that differs.

    Args:
        old: the checkout that the program was made for.
        new: the other checkout.
        uses: the names that the program touches.
        bases: files of the checkout, relative to its root, that configs of the program inherit from.
    """
    result = [difference for use in uses for difference in _of_name(old, new, use)]
    result += _mappings("key", old.list_keys(MASTER_CONFIG), new.list_keys(MASTER_CONFIG))
    result += _mappings("save state", old.list_keys(SAVE_STATE), new.list_keys(SAVE_STATE))
    result += _sets("metric", *(one.list_metrics(LOOP, LOOPS) for one in (old, new)))
    for base in sorted(set(bases)):
        result += _of_example(old, new, base)
    return result


def _of_name(old: Checkout, new: Checkout, use: Use) -> Iterator[NameDifference]:
    before, after = old.find(use.name), new.find(use.name)
    if before is None and after is None:
        return
    if before is None or after is None:
        first_module, second_module = (ABSENT if one is None else f"in {one.module}" for one in (before, after))
        yield NameDifference("name", use.name, first_module, second_module, use.where)
        return
    first, second = _callable(before.node), _callable(after.node)
    if first is None or second is None:
        if _sort(before.node) != _sort(after.node):
            yield NameDifference("name", use.name, _sort(before.node), _sort(after.node), use.where)
        return
    for kind, look in (("parameters", _signature), ("returned values", describe_return)):
        if look(first) != look(second):
            yield NameDifference(kind, use.name, look(first) or UNDECLARED, look(second) or UNDECLARED, use.where)


def _callable(node: Any) -> Function | None:
    """Return the function itself, or the constructor of a class; None for anything else."""
    if isinstance(node, ast.ClassDef):
        return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _signature(function: Function) -> str:
    return f"({', '.join(list_parameters(function))})"


def _sort(node: Any) -> str:
    names = {ast.FunctionDef: "a function", ast.AsyncFunctionDef: "a coroutine function", ast.ClassDef: "a class"}
    return "a module" if node is None else names.get(type(node), "a value")


def _mappings(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[NameDifference]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield NameDifference(kind, key, old.get(key, ABSENT), new.get(key, ABSENT))


def _sets(kind: str, old: set[str], new: set[str]) -> Iterator[NameDifference]:
    yield from _mappings(kind, dict.fromkeys(old, "exists"), dict.fromkeys(new, "exists"))


def _of_example(old: Checkout, new: Checkout, base: Path) -> Iterator[NameDifference]:
    present = [(checkout.root / base).is_file() for checkout in (old, new)]
    if not all(present):
        yield NameDifference("example", str(base), *("exists" if there else ABSENT for there in present))
        return
    values = [dict(_flat(read_yaml(checkout.root / base))) for checkout in (old, new)]
    for difference in _mappings("example", *({k: repr(v) for k, v in one.items()} for one in values)):
        yield NameDifference("example", f"{base}: {difference.what}", difference.old, difference.new)


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), node


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One name that a program touches.

    Attributes:
        name: dotted name, with its module.
        where: what touches it.
    """

    name: str
    where: str


def own() -> list[Use]:
    """Return the names that nemo_ada replaces, subclasses, observes, imports, or reads of an object."""
    uses = [Use(f"{target.origin}.{target.name}", "replaced while a run lasts") for target in upstream.PATCH_POINTS]
    uses += [Use(f"{upstream.SYNC_LOOP}.{target.name}", "replaced in the trainer with a data plane")
             for target in upstream.DATA_PLANE_POINTS]  # fmt: skip
    uses += [
        Use(name, "subclassed or called for the trainer with a data plane") for name in upstream.DATA_PLANE_METHODS
    ]
    uses += [Use(name, where) for name, where in upstream.TOUCHED.items()]
    for target in (upstream.SAMPLE_ROLLOUT, upstream.GYM_ROLLOUT, upstream.GYM_SYNC):
        uses.append(Use(f"{upstream.ROLLOUTS}.{target.name}", "called for one response"))
    collectors = {upstream.COLLECTOR: {**upstream.PER_GROUP, **upstream.PER_BATCH}}
    for name, methods in (*upstream.METHODS.items(), *collectors.items()):
        uses += [Use(f"{upstream.ACTORS}.{name}.{method}", "subclassed for asynchronous training")
                 for method in methods]  # fmt: skip
    fields = [f"{name}.{field}" for name, wanted in upstream.PLUG_IN_FIELDS.items() for field in wanted]
    uses += [Use(name, "subclassed or called for the single controller") for name in upstream.PLUG_IN_METHODS]
    uses += [Use(name, "set or read for the single controller") for name in (*upstream.PLUG_IN_FIELDS, *fields)]
    uses += [Use(f"{module}.{name}", "observed by a rehearsal") for _, module, name in observe.FUNCTIONS]
    uses += [Use(f"{reader.of}.{name}", f"read by nemo_ada/{reader.file}")
             for reader in attributes.list_readers() for name in attributes.list_reads(reader)]  # fmt: skip
    for replacements in FOR_CPU:
        uses += [Use(f"{change.module}.{name}", "replaced in a rehearsal")
                 for change in replacements.changes for name in change.names]  # fmt: skip
    package = Path(nemo_ada.__file__).parent
    uses += imported(sorted(package.rglob("*.py")), package.parent)
    return unique(use for use in uses if use.name.startswith(f"{PACKAGE}."))


def imported(files: Iterable[Path], root: Path) -> Iterator[Use]:
    """Yield the names that `from nemo_rl... import` takes in some Python files.

    Args:
        files: Python files.
        root: the folder that the files are named from.
    """
    for path in files:
        text = text_of(path)
        for node in ast.walk(ast.parse(text)) if f"from {PACKAGE}" in text else ():  # parsing takes seconds
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    yield Use(f"{node.module}.{alias.name}", f"imported by {path.relative_to(root)}")


def listed(path: Path) -> list[Use]:
    """Return the names of a plug-in's file: a YAML list of dotted names, or a mapping from names to what touches them.

    Raises:
        UserError: the file is missing, or holds something else.
    """
    content = read_yaml(path, "the list of names")
    names = content.items() if isinstance(content, dict) else [(name, path.name) for name in content or ()]
    uses = [Use(str(name), str(where)) for name, where in names]
    wrong = [use.name for use in uses if not use.name.startswith(f"{PACKAGE}.")]
    if wrong or not uses:
        raise UserError(
            f"{path}: {', '.join(wrong) or 'nothing'}: write dotted names such as {PACKAGE}.utils.logger.Logger"
        )
    return unique(uses)


def unique(uses: Iterable[Use]) -> list[Use]:
    """One use per name, in alphabetical order. The first one says what touches the name."""
    first: dict[str, Use] = {}
    for use in uses:
        first.setdefault(use.name, use)
    return sorted(first.values())


def main(words: Sequence[str] | None = None) -> int:
    """Compare what the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT", help="[OLD] NEW")
    parser.add_argument("--uses", type=Path, help="YAML list of the names that your own program touches")
    parser.add_argument("--run", type=Path, help="a cluster config to rehearse with both, in the short form")
    parser.add_argument("--json", type=Path, help="file for the differences")
    given = parser.parse_args(words)
    try:
        if len(given.checkouts) > 2:
            raise UserError("more than two checkouts were given; write contract.py [OLD] NEW")
        old = given.checkouts[0] if len(given.checkouts) == 2 else Path(os.environ.get("NEMO_RL_HOME", ""))
        return contract(old, given.checkouts[-1], uses=given.uses, run=given.run, out=given.json, say=print)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
