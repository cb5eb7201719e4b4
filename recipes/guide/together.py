"""Writes the tables of recipes/results/features.md from together.yaml: `python recipes/guide/together.py`.

`python recipes/guide/together.py --count $NEMO_RL_HOME` first prints how many of NeMo-RL's GRPO configurations use each
feature with `used`, for the numbers under `configs`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from nemo_ada.config.load import load_yaml

HERE = Path(__file__).parent
PAGE, ROWS = HERE.parent / "results" / "features.md", HERE / "together.yaml"
WANTED = """NeMo-RL v0.7.0 has 163 configurations for GRPO in `examples/configs`
(`python recipes/guide/together.py --count $NEMO_RL_HOME`). The rehearsal cannot run these features on this CPU.
"""
MARKS = ("<!-- recipes/guide/together.py writes this -->\n", "<!-- up to here -->\n")
RAN = ("rehearsed", "tested")
STATES = (*RAN, "should work", "refused", "read only", "not together", "other trainers", "not there")


def on_main(row: Mapping[str, Any]) -> str:
    """The row's state on NeMo-RL's main."""
    return str(row.get("main") or ("should work" if row["v0.7.0"] in RAN else row["v0.7.0"]))


def evidence(row: Mapping[str, Any]) -> str:
    """What the last column says: the rehearsal, the tests, the refused overrides, and the remark."""
    parts = []
    if "command" in row:
        parts.append(f"{row['date']}: `{row['command'].removeprefix('nemo-ada ')}`")
    for test in row.get("tests", ()):
        path, _, name = test.partition("::")
        parts.append(f"`{name}` in `{path}`" if name else f"`{path}`")
    if "refuse" in row:
        parts.append(f"`{row['refuse'][0]}`")
    parts += [f"instead: {row['instead']}"] if "instead" in row else []
    parts += [row["why"]] if "why" in row else []
    return "; ".join(parts)


def tables() -> str:
    """All sections, as Markdown."""
    text = []
    for section in yaml.safe_load(ROWS.read_text(encoding="utf-8")):
        lines = [f"## {section['section']}\n", "| feature | v0.7.0 | main | evidence |", "|---|---|---|---|"]
        lines += [
            f"| {row['feature']} | {row['v0.7.0']} | {on_main(row)} | {evidence(row)} |" for row in section["rows"]
        ]
        text.append("\n".join(lines) + "\n")
    return "\n".join(text)


def rows() -> list[dict[str, Any]]:
    """The rows of all sections."""
    return [row for section in yaml.safe_load(ROWS.read_text(encoding="utf-8")) for row in section["rows"]]


def wanted() -> str:
    """The features that should work, by the number of NeMo-RL's configurations that use them."""
    waiting = [row for row in rows() if row["v0.7.0"] == "should work" and row.get("configs")]
    lines = ["| feature | configurations that use it |", "|---|---|"]
    lines += [f"| {row['feature']} | {row['configs']} |" for row in sorted(waiting, key=lambda row: -row["configs"])]
    return "\n".join(["## Most used, and not yet rehearsed\n", WANTED, *lines]) + "\n"


def grpo_configs(checkout: Path) -> Iterator[DictConfig]:
    """The GRPO configurations among the examples of a checkout of NeMo-RL, each merged with its parents."""
    for path in sorted((checkout / "examples" / "configs").rglob("*.yaml")):
        if re.search("grpo|prorl|gspo", path.name):
            yield load_yaml(path)


def uses(config: DictConfig, used: Mapping[str, Any]) -> bool:
    """Return whether a configuration uses a feature.

    Args:
        config: the configuration.
        used: expected values by key. A number is the smallest value, and a text is a regular expression.
    """
    for key, expected in used.items():
        value = OmegaConf.select(config, key)
        if isinstance(expected, bool):
            fits = value is expected
        elif isinstance(expected, int):
            fits = type(value) is int and value >= expected
        else:
            fits = value is not None and re.search(expected, str(value), re.IGNORECASE) is not None
        if not fits:
            return False
    return True


def page(old: str) -> str:
    """The page with new tables between the marks."""
    before, _, rest = old.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{tables()}\n{wanted()}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def main() -> None:
    """Count, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=Path, help="a checkout of NeMo-RL")
    checkout = parser.parse_args().count
    if checkout is not None:
        configs = list(grpo_configs(checkout))
        print(f"{len(configs)} configurations")
        for row in rows():
            if "used" in row:
                print(f"{sum(uses(config, row['used']) for config in configs):4} {row['feature']}")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
