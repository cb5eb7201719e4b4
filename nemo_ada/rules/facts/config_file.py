"""Load a config of either back end, and tell which part of it is NeMo-RL's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from nemo_ada.config.load import load_words, load_yaml, resolve_config, split_words
from nemo_ada.config.paths import make_paths_whole
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.checkout import belongs_to_nemo_rl
from nemo_ada.rules.facts.site import read_site_setting

HOME = "NEMO_RL_HOME"
EXAMPLES = "examples/configs"  # of a checkout
MAX_NUMBER = 1e30  # of the arithmetic of interpolations
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: _check_number(a) + _check_number(b),
    "mul": lambda a, b: _check_number(a) * _check_number(b),
    "div": lambda a, b: _check_number(a) / _check_number(b),
    "max": max,  # which makes nothing larger, and so needs no check
}


def load_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A YAML of either back end, with its `defaults`, overlays, overrides and interpolations resolved.

    `overrides` may name overlays, too: more YAMLs, such as configs/methods/grpo8.yaml.

    Raises:
        UserError: for a YAML that cannot be read. It says what to set where NEMO_RL_HOME is missing.
    """
    register_arithmetic()
    home = read_site_setting(HOME)
    if home and HOME not in os.environ and Path(home).is_dir():
        os.environ[HOME] = home  # the YAML's interpolations read it from there
    try:
        # It looks for files beside the YAMLs that name them, because no process of a run stands in the user's folder.
        return make_paths_whole(resolve_config(load_words(path, overrides)), split_words(path, overrides)[0], overrides)
    except UserError as problem:
        works = f"set {HOME} to a checkout of NeMo-RL v0.7.0 (export {HOME}=/path/to/RL)"
        if HOME in str(problem):
            raise UserError(f"{path} builds on NeMo-RL's own files; {works}, or in slurm/site.env") from None
        if home and not (Path(home) / EXAMPLES).is_dir():
            fault = f"{HOME}={home} is no checkout of NeMo-RL: it has no folder {EXAMPLES}; {works}"
            # A file that is missing below the wrong folder has no other cause.
            raise UserError(
                fault if str(Path(home).resolve()) in str(problem) else f"{problem}; besides, {fault}"
            ) from None
        raise


def register_arithmetic() -> None:
    """Let interpolations add, multiply, divide and compare. NeMo-RL's own files do (`add` since August 2026)."""
    for name, rule in _ARITHMETIC.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, rule)


def _check_number(value: Any) -> int | float:
    """Return a number as it is. A text times a number could fill the memory."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MAX_NUMBER:
        raise ValueError(f"{str(value)[:40]!r} is no number below {MAX_NUMBER:g}")
    return value


def load_upstream_part(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of some YAMLs that comes from NeMo-RL's own files, with its interpolations unresolved.

    The rules of key names and of keys without effect take it: what NeMo-RL's files say is right, and nobody's wish.
    """
    taken = OmegaConf.merge(*map(_load_upstream, split_words(path, overrides)[0]))
    return cast(dict[str, Any], OmegaConf.to_container(taken, resolve=False))


def _load_upstream(path: Path) -> DictConfig:
    """Merge what is NeMo-RL's among a YAML and its `defaults`. Of a user's YAML only the `defaults` are looked at.

    A YAML that a user has put into the checkout is the user's, too.
    """
    home = os.environ.get(HOME)
    if home is not None and Path(home).resolve() in path.resolve().parents and belongs_to_nemo_rl(path, Path(home)):
        return load_yaml(path)
    merged = OmegaConf.create({})
    parents = cast(DictConfig, OmegaConf.load(path)).get("defaults", [])
    for name in [parents] if isinstance(parents, str) else parents:
        merged.merge_with(_load_upstream(path.parent / name))
    return merged
