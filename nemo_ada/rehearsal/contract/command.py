"""`nemo-ada contract`: print the differences of two checkouts, and rehearse on both if asked."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from nemo_ada.config.load import packaged
from nemo_ada.errors import UserError
from nemo_ada.rehearsal.contract.compare import NameDifference, differences
from nemo_ada.rehearsal.contract.uses import listed, own
from nemo_ada.rules.facts.checkout import Checkout
from nemo_ada.run import start
from nemo_ada.run.files import write_result
from nemo_ada.run.job_control import EXIT_DONE
from nemo_ada.run.yaml_file import read_yaml

EXIT_DIFFERENT = 3
MAX_WIDTH = 160
HEADLINES = {
    "name": "Names",
    "parameters": "Parameters",
    "returned values": "Returned values, counted in the source",
    "returned type": "Declared types of results",
    "key": "Configuration keys",
    "save state": "State of the loop in a checkpoint",
    "file in a checkpoint": "Files in a checkpoint",
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
            "made_by": "nemo-ada contract",
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
    for path in sorted(packaged(Path("configs")).rglob("*.yaml")):
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
    from nemo_ada.rehearsal.installation import BRIDGE, MEGATRON, SUBMODULE

    passed = {}
    for name, checkout in (("old", old), ("new", new)):
        command = start.python(sys.executable, "-m", "nemo_ada.cli", "rehearse", config, "--steps", "1", "--no-resume")
        environment = start.environment(NEMO_RL_HOME=str(checkout))
        if (checkout / SUBMODULE / "src").is_dir():
            environment = {key: value for key, value in environment.items() if key not in (BRIDGE, MEGATRON)}
        done = start.run(command, env=environment, capture_output=True, text=True)
        passed[name] = done.returncode == 0
        lines = (done.stdout + done.stderr).strip().splitlines()
        verdict = next((line for line in lines if line.startswith(("passed", "failed"))), lines[-1] if lines else "")
        say(f"rehearsal with {name} ({checkout}): {'passed' if passed[name] else 'failed'}: {verdict}")
    return all(passed.values())


def default_checkout() -> Path:
    """Return the checkout that NEMO_RL_HOME names.

    Raises:
        UserError: the variable is not set.
    """
    home = os.environ.get("NEMO_RL_HOME")
    if not home:
        raise UserError("name both checkouts, or set NEMO_RL_HOME to the one that you use now")
    return Path(home)
