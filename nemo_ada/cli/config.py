"""The command `nemo-ada config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_ada.errors import UserError
from nemo_ada.standing import show_path

UNSET = "(not set)"


def config(
    config: Annotated[
        Path | None, typer.Argument(help="a YAML in configs/; with --keys a word that keys must contain")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="list every setting: values, default, meaning")] = False,
    diff: Annotated[
        Path | None, typer.Option(help="another YAML, or the folder of a run: print only what differs from it")
    ] = None,
) -> None:
    """Print the YAML that a run would get, with all defaults, overlays and settings resolved. Nothing starts.

    --keys lists the settings of the CPU back end. Those below `reinforce_ada` are the same under NeMo-RL.
    """
    if keys and diff is not None:
        raise UserError(
            "--keys does not go with --diff: `nemo-ada config --keys WORD` lists settings, `nemo-ada config CONFIG "
            "--diff OTHER` compares"
        )
    if keys:
        _print_keys([] if config is None else [str(show_path(config)), *(overrides or [])])
        return
    if config is None:
        raise UserError(
            "`nemo-ada config` needs a YAML, such as in `nemo-ada config configs/cpu/mini_sudoku.yaml`, or --keys"
        )
    from nemo_ada.run.folder import find_changed_keys, flatten
    from nemo_ada.run.redaction import hide

    resolved = _resolve(config, overrides or [])
    if diff is None:
        import yaml

        typer.echo(hide(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)), nl=False)
        return
    old, new = flatten(_resolve(diff / "config.yaml" if diff.is_dir() else diff, [])), flatten(resolved)
    lines = [f"{key}: {old.get(key, UNSET)} -> {new.get(key, UNSET)}" for key in find_changed_keys(old, new)]
    typer.echo(hide("\n".join(lines)) if lines else f"{config} and {diff} resolve to the same")


def _resolve(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Return what a run would get. Defaults of the CPU back end are filled in. NeMo-RL's come from its own files."""
    from nemo_ada.config.load import backend_of
    from nemo_ada.config.parsing import parse
    from nemo_ada.config.presets import SECTION, parse_ada_settings
    from nemo_ada.cpu.settings import RunConfig
    from nemo_ada.rules.facts.config_file import load_config

    loaded = load_config(path, overrides)
    if backend_of(loaded) == "embedded":
        return parse(RunConfig, loaded).model_dump(mode="json")
    if SECTION in loaded:
        loaded[SECTION] = parse_ada_settings(loaded[SECTION]).model_dump(mode="json")
    return loaded


def _print_keys(words: list[str]) -> None:
    """Print the settings whose keys contain all words."""
    from nemo_ada.config.keys import list_settings
    from nemo_ada.config.parsing import find_meant
    from nemo_ada.cpu.settings import RunConfig

    found = list_settings(RunConfig)
    shown = [setting for setting in found if all(word in setting.key for word in words)]
    if not shown:
        close = find_meant(words[0], [setting.key for setting in found])
        works = f"did you mean {' or '.join(close)}?" if close else "`nemo-ada config --keys` lists all"
        raise UserError(f"no setting has {' and '.join(words)} in its key; {works}")
    for setting in shown:
        default = "must be set" if setting.default == "" else f"default {setting.default}"
        where = f" [{setting.where}]" if setting.where else ""
        typer.echo(f"{setting.key}{where}: {setting.kind}, {default}")
        if setting.meaning:
            typer.echo(f"    {setting.meaning}")
