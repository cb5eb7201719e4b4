"""From a YAML file and `key=value` overrides to a checked configuration.

`defaults: other.yaml` (or a list) names parents, relative to the file, as in NeMo-RL; overrides have hydra's grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_ada.config.run import RunConfig
from nemo_ada.config.strict import parse, suggestion
from nemo_ada.errors import UserError

BACKENDS = ("embedded", "nemo_rl")


def load_yaml(path: Path, *, _children: tuple[Path, ...] = ()) -> DictConfig:
    """A YAML with its `defaults` merged in. Raises UserError for a file that is missing or is no mapping."""
    path = path.resolve()
    if path in _children:
        raise UserError(f"{path}: its `defaults` lead back to itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    try:
        content = yaml.safe_load(text)
        config = OmegaConf.create(content) if isinstance(content, dict) else None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, DictConfig):
        raise UserError(f"{path} must hold a mapping of sections, as the files in configs/ do")
    try:
        parents = config.pop("defaults", [])
        merged: DictConfig = OmegaConf.create({})
        for parent in [parents] if isinstance(parents, str) else parents:
            merged.merge_with(load_yaml(path.parent / str(parent), _children=(*_children, path)))
        merged.merge_with(config)
        return merged
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def apply_overrides(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """`key=value` with hydra's grammar (`+key=`, `++key=`, `~key`). Raises UserError, with the nearest known key."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        for override in parsed:
            if override.is_sweep_override():
                raise UserError(f"{override.input_line}: one run takes one value")
        ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"override {' '.join(str(error).split())}") from None
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration with its interpolations resolved."""
    try:
        return dict(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise UserError(f"configuration: {' '.join(str(error).split())}") from None


def backend_of(config: DictConfig) -> str:
    """Which back end the YAML asks for."""
    backend = str(config.get("backend", "embedded"))
    if backend not in BACKENDS:
        raise UserError(f"backend={backend}: no such back end; {suggestion(backend, BACKENDS, 'choices')}")
    return backend


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration of an embedded run."""
    return parse(RunConfig, plain(apply_overrides(load_yaml(path), overrides)))
