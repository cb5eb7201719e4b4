"""Rules for the names of keys. NeMo-RL does not check them: it loads a config with `gpro:` without an error.

`nemo_rl_keys.yaml` lists the names of v0.7.0 and of vLLM's arguments. A name that the config takes from NeMo-RL's own
files is right, too. A section that is not in the list takes any name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemo_ada.rules.finding import Findings, error, ok

KNOWN = Path(__file__).with_name("nemo_rl_keys.yaml")
TOP = "top"  # the file's name for the level above all sections
OURS = ("backend", "run_dir", "resume", "reinforce_ada", "defaults")
CLOSE = 0.75  # difflib's ratio above which one name is a slip for the other


@cache
def known_names() -> Mapping[str, frozenset[str]]:
    """Dotted section -> names of its keys in NeMo-RL v0.7.0."""
    sections = yaml.safe_load(KNOWN.read_text(encoding="utf-8"))
    return {section: frozenset(names) for section, names in sections.items()}


def key_names(config: Mapping[str, Any], base: Mapping[str, Any]) -> Findings:
    """Misspelled and unknown keys. `base`: the part of the config from NeMo-RL's own files, whose names are right."""
    names = list(unknown(config, base))
    for key in names:
        yield error(key, f"NeMo-RL v0.7.0 has no such key and would ignore it; {_meant(key)}")
    if not names:
        yield ok("configuration", "all keys are NeMo-RL's or ours")


def unknown(config: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """Dotted keys that neither the list nor `base` has."""
    theirs = {key: value for key, value in config.items() if key not in OURS}
    yield from _unknown(theirs, base, "")


def _unknown(section: Mapping[str, Any], base: Any, where: str) -> Iterator[str]:
    names = known_names().get(where or TOP)
    if names is None:
        return
    for key, value in section.items():
        dotted = f"{where}.{key}" if where else str(key)
        in_base = isinstance(base, Mapping) and key in base
        if key not in names and not in_base:
            yield dotted
        elif isinstance(value, Mapping):
            yield from _unknown(value, base[key] if in_base else {}, dotted)


def _meant(key: str) -> str:
    """What the user may have meant: a name of the same section, or the same name in another one."""
    section, _, name = key.rpartition(".")
    known = known_names()
    close = difflib.get_close_matches(name, sorted(known[section or TOP]), n=1, cutoff=CLOSE)
    if close:
        return f"did you mean {f'{section}.' if section else ''}{close[0]}?"
    elsewhere = [other for other, names in known.items() if name in names and other != TOP]
    if elsewhere:
        return f"did you mean {' or '.join(f'{other}.{name}' for other in elsewhere[:2])}?"
    return "remove it, or look it up in NeMo-RL's examples/configs"
