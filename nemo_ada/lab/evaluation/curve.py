"""Write the curve over several checkpoints that were evaluated alike: OUT/curve.json and OUT/curve.png."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada import __version__
from nemo_ada.errors import UserError
from nemo_ada.lab.data.journal import claimed
from nemo_ada.run.files import write_atomically

STEP = re.compile(r"\d+")


def names_of(models: Sequence[Path]) -> list[str]:
    """Return a folder name per checkpoint, with its parent's name where two are equal.

    Raises:
        UserError: Two names are still equal.
    """
    paths = [Path(os.path.abspath(path)) for path in models]  # a loop of links has a name, too
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}-{path.name}" for path in paths]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"two models have the name {', '.join(repeated)}; give each checkpoint once")
    return names


def write_curve(out: Path, contents: Mapping[str, Mapping[str, Any]], k: int) -> dict[str, Any]:
    """Write the curve of several results.json, in the order of their steps.

    Args:
        out: The folder of the curve. It is new, empty or ours.
        contents: The content of results.json per checkpoint.
        k: The number of responses per problem.

    Returns:
        The content of curve.json.
    """
    settings = {"nemo_ada": __version__, "benchmarks": {}}
    points = [
        {
            "model": name,
            "step": _step(name),
            "overall": content["overall"][f"avg@{k}"],
            "benchmarks": {benchmark: row[f"avg@{k}"] for benchmark, row in content["benchmarks"].items()},
        }
        for name, content in contents.items()
    ]
    if all(point["step"] is not None for point in points):
        points.sort(key=lambda point: point["step"])
    curve = {"k": k, "points": points}
    with claimed(out, settings):
        write_atomically(out / "curve.json", json.dumps(curve, indent=1, ensure_ascii=False) + "\n")
        _draw(curve, out / "curve.png")
    return curve


def check_folder(out: Path) -> None:
    """Raise UserError where `out` is somebody else's, before hours of work."""
    with claimed(out, {"nemo_ada": __version__, "benchmarks": {}}):
        pass


def _step(name: str) -> int | None:
    """Return the last number in a checkpoint's name."""
    numbers = STEP.findall(name)
    return int(numbers[-1][:18]) if numbers else None


def _draw(curve: Mapping[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    points = curve["points"]
    by_step = all(point["step"] is not None for point in points)
    places = [point["step"] for point in points] if by_step else list(range(len(points)))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    rows = {name: [point["benchmarks"][name] for point in points] for name in points[0]["benchmarks"]}
    if len(rows) > 1:
        rows["overall, by prompts"] = [point["overall"] for point in points]
    for name, values in rows.items():
        empty = (math.nan, math.nan, math.nan)  # a benchmark without a judged problem
        numbers = [(v["low"], v["mean"], v["high"]) if v["prompts"] else empty for v in values]
        low, means, high = 100 * np.array(numbers).T
        below, above = means - low, high - means
        axes.errorbar(places, means, yerr=[below, above], marker="o", capsize=3, label=name)
    if by_step:
        axes.set_xlabel("step")
    else:
        axes.set_xticks(places, [point["model"] for point in points], rotation=30, ha="right")
    axes.set_ylabel(f"avg@{curve['k']}, % (95 % interval over problems)")
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_atomically(path, drawn.getvalue())
