"""The names of NeMo-RL that a program touches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.rules.facts import upstream
from nemo_ada.rules.facts.checkout import PACKAGE
from nemo_ada.run.files import text_of
from nemo_ada.run.yaml_file import read_yaml


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
    """Return the names that nemo_ada replaces, subclasses, observes or imports."""
    from nemo_ada.rehearsal import observe
    from nemo_ada.rehearsal.standins import FILES

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
    uses += [Use(name, "subclassed or called for the single controller") for name in upstream.CONTROLLER_METHODS]
    uses += [Use(f"{module}.{name}", "observed by a rehearsal") for _, module, name in observe.FUNCTIONS]
    for replacements in FILES:
        uses += [Use(f"{change.module}.{name}", "replaced in a rehearsal")
                 for change in replacements.changes for name in change.names]  # fmt: skip
    package = Path(__file__).parents[2]
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
