"""From YAML files and `key=value` overrides to a checked configuration.

Every command takes one YAML and then words. A word that ends in `.yaml` is an overlay, which is merged over the YAMLs
in front of it. Every other word is an override in hydra's grammar; a value that the grammar cannot read is text.
Overrides apply after all overlays, wherever they stand. Inside a YAML, `defaults: other.yaml` (or a list) names
parents, relative to the file, as in NeMo-RL.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from nemo_ada import by_name
from nemo_ada.config.parsing import CLOSE, suggest_name
from nemo_ada.config.paths import DATA_FILES, find_shipped, list_family, locate_packaged
from nemo_ada.errors import UserError
from nemo_ada.run.redaction import find_secret_keys, find_secret_values, walk_nodes
from nemo_ada.run.yaml_file import read_yaml
from nemo_ada.standing import get_users_folder, get_whole_path, show_path

BACKENDS = ("embedded", "nemo_rl")
RUN_DIR = "run_dir"
NAMES_OF_CODE = (
    "task.reward",
    "task.task",
    "reinforce_ada.sampling.exit.name",
    "reinforce_ada.advantage.objective.name",
)
"""Settings whose value is `package.module:name`."""
OWN_CODE = ("nemo_rl.", "nemo_ada.nemo.")  # classes of environments that are no code of the user's
_KEY_VALUE = re.compile(r"(?P<key>\+{0,2}[\w./@-]+)=(?P<value>.*)", re.DOTALL)
_SENTENCE = re.compile(r"\w, \w")  # what makes a text of words between commas
_BLANKS = re.compile(r"\s*(?P<key>[\w./@+~-]+)\s*=\s*(?P<value>.*\S)\s*", re.DOTALL)
FOLDERS = ("", "cpu", "methods")  # of configs/, whose YAMLs a wrong name may mean
MAX_INTERPOLATIONS = 5_000  # of a configuration; NeMo-RL's own have some hundred
MAX_VALUE = 1 << 20  # characters of a value
MAX_PARENTS = 50  # files that `defaults` may lead to, one below the other
# What hydra and OmegaConf raise for bad input: their own errors and bare Python errors.
_LIBRARY_ERRORS = (
    HydraException, OmegaConfBaseException, ValueError, RecursionError, ArithmeticError, LookupError, AttributeError,
    TypeError,
)  # fmt: skip


def load_yaml(path: Path, *, _children: tuple[Path, ...] = ()) -> DictConfig:
    """Read a YAML and merge it over its `defaults`. Raises UserError for a file that cannot be used."""
    try:
        path = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, or a name that no file can have
        raise UserError(f"cannot read the configuration {str(path)!r}: {error}") from None
    if path in _children:
        raise UserError(f"{path}: its `defaults` lead back to itself")
    if len(_children) > MAX_PARENTS:
        raise UserError(f"{path}: its `defaults` are more than {MAX_PARENTS} files deep")
    if path.suffix in DATA_FILES:
        raise UserError(
            f"{path} is a file of data, no configuration; give a YAML of configs/ and task.path={path.name} (CPU) or "
            f"data.train.data_path={path.name} (NeMo-RL) behind it"
        )
    if not _children and not os.path.exists(path):
        raise _make_missing_error(path)
    named_by = f", which {_children[-1]} names in `defaults`," if _children else ""
    content = read_yaml(path, f"the configuration{named_by}")
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping of sections, as the files in configs/ do")
    nameless = [key for key in content if not isinstance(key, str)]
    if nameless:
        raise UserError(f"{path}: the section {nameless[0]!r} has no name; sections are named by text")
    try:
        config: DictConfig = OmegaConf.create(content)
        parents = config.pop("defaults", [])
        names = [parents] if isinstance(parents, str) else parents
        if not isinstance(names, (list, ListConfig)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"defaults={parents!r} must be the path of another YAML, or a list of them")
        if not names:
            return config
        merged: DictConfig = OmegaConf.create({})
        for parent in names:
            _merge(merged, load_yaml(path.parent / parent, _children=(*_children, path)))
        _merge(merged, config)
        return merged
    except UserError:
        raise
    except _LIBRARY_ERRORS as error:
        raise UserError(f"{path}: {_shorten_error(error)}") from None


def _make_missing_error(path: Path) -> UserError:
    """Return the error for a YAML that a user named and nobody has, with the file that the user may have meant."""
    if "=" in path.name:
        return UserError(
            f"{path.name} stands where the YAML should; name the YAML first and settings behind it, such as "
            f"configs/cpu/mini_sudoku.yaml {path.name}"
        )
    own = sorted(path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    known = [show_path(file) for file in own if file.is_file()]
    known += [Path("configs") / folder / file.name for folder in FOLDERS
              for file in sorted(locate_packaged(Path("configs", folder)).glob("*.yaml"))]  # fmt: skip
    names = {_simplify_name(file): file for file in reversed(known)}
    wanted = _simplify_name(path)
    inside = [name for name in names if wanted in name.split("-")] if len(wanted) > 3 else []
    close = [wanted] if wanted in names else difflib.get_close_matches(wanted, names, n=1, cutoff=CLOSE) or inside[:1]
    works = f"did you mean {names[close[0]]}?" if close else "give the path of a YAML; configs/README.md lists them"
    return UserError(f"cannot read the configuration {path}: no such file; {works}")


def _simplify_name(path: Path) -> str:
    """Return the name of a YAML in which `_` and `-`, large and small letters and the ending do not matter."""
    return path.name.removesuffix(".yaml").removesuffix(".yml").replace("_", "-").lower()


def _merge(base: DictConfig, own: DictConfig) -> None:
    """Merge one YAML over another as NeMo-RL does: `_override_: true` in a section at the top replaces that section.

    In a deeper section the mark means nothing to NeMo-RL, so it stays there, and `check` says that it is no setting.
    """
    for key in [
        key for key in map(str, own) if not OmegaConf.is_interpolation(own, key) and not OmegaConf.is_missing(own, key)
    ]:
        section = own[key]
        if isinstance(section, DictConfig) and section.get("_override_", False):
            del section["_override_"]
            base.pop(key, None)
    base.merge_with(own)


def split_words(path: Path, words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Split the words of a command line into YAMLs and overrides.

    Args:
        path: the first YAML.
        words: the words behind it.

    Returns:
        All YAMLs, `path` first and then the overlays, and the overrides. A YAML of configs/ that is not in the working
        folder is the one that came with this package.
    """
    overlays = [word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word]
    yamls = [find_shipped(path), *(find_shipped(Path(word)) for word in overlays)]
    return yamls, [word for word in words if word not in overlays]


def merge_overlays(paths: Sequence[Path], configs: Sequence[DictConfig]) -> DictConfig:
    """Merge YAMLs that are loaded already, each over those in front of it.

    The run directory gets the overlays' names, so that runs of different methods do not share a folder:
    `runs/qwen2.5-32b` becomes `runs/qwen2.5-32b-grpo8`. An overlay with a `run_dir` keeps it.

    Args:
        paths: files of the YAMLs.
        configs: contents of the YAMLs, in the same order.

    Raises:
        UserError: for YAMLs that do not merge.
    """
    base, overlays = configs[0], configs[1:]
    try:
        for overlay in overlays:
            _merge(base, overlay)
        unresolved: Any = OmegaConf.to_container(base, resolve=False)
        if RUN_DIR in unresolved and overlays and not any(RUN_DIR in overlay for overlay in overlays):
            base[RUN_DIR] = "-".join([str(unresolved[RUN_DIR]), *(path.stem for path in paths[1:])])
    except _LIBRARY_ERRORS as error:
        raise UserError(f"{' '.join(map(str, paths))}: {_shorten_error(error)}") from None
    return base


def load_words(path: Path, words: Sequence[str] = ()) -> DictConfig:
    """Load a YAML, merge the overlays among `words` and apply the overrides among them. Raises UserError."""
    paths, overrides = split_words(path, words)
    with bound_interpolations():
        config = apply_overrides(merge_overlays(paths, [load_yaml(yaml) for yaml in paths]), overrides)
        find_code(config, paths, overrides)
    return config


def find_code(config: DictConfig, paths: Sequence[Path], overrides: Sequence[str]) -> None:
    """Replace the names of a user's code by names with the whole paths of its files, and say which files these are.

    Args:
        config: the configuration, which is changed.
        paths: the YAMLs that the command names. Code may stand beside them and those that their `defaults` name.
        overrides: the settings of the command line, whose code may stand in the working folder.

    Raises:
        UserError: there is no such code, or only the name of its module led to a file of another user (by_name.py).
    """
    keys = [key.split(".") for key in NAMES_OF_CODE]
    keys += [["env", str(title), name] for title in _get_value(config, "env") or () for name in ("class", "reward")]
    for key in keys:
        name = _get_value(config, *key)
        if not isinstance(name, str) or name.startswith(OWN_CODE):
            continue
        dotted = ".".join(key)
        beside = list(dict.fromkeys(file.parent for path in paths for file in list_family(path.resolve())))
        told = any(word.lstrip("+").startswith(tuple(_list_sections(dotted))) and name in word for word in overrides)
        folders = [get_users_folder(), *beside] if told else [*beside, get_users_folder()]
        form = ":".join(name.rsplit(".", 1)) if key[-1] == "class" and ":" not in name else name
        found = by_name.find(dotted, form, folders)
        _get_value(config, *key[:-1])[key[-1]] = name if found == form else found
        whose = next((path for path in reversed(paths) if _get_value(load_yaml(path), *key) == name), paths[0])
        by_name.announce_file(
            dotted, name, found, "the command line" if told else str(show_path(get_whole_path(Path(whose))))
        )


def _list_sections(dotted: str) -> list[str]:
    """Return a dotted key and the sections that it is in, each as an override begins."""
    parts = dotted.split(".")
    return ["".join((".".join(parts[:number]), "=")) for number in range(1, len(parts) + 1)]


def _get_value(config: DictConfig, *keys: str) -> Any:
    """Return a value of a configuration. None where there is none; `resolve_config` and `parse` say what is wrong."""
    node: Any = config
    try:
        for key in keys:
            node = node.get(key) if isinstance(node, DictConfig) else None
    except _LIBRARY_ERRORS:
        return None
    return node


def apply_overrides(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Apply `key=value` in hydra's grammar (`+key=`, `++key=`, `~key`) to a configuration.

    A secret is refused, because back ends write their configuration to disk, and because every user of a machine can
    read its command lines.

    Raises:
        UserError: for an override that does not apply, with the nearest known key.
    """
    for text in overrides:
        try:
            override = _read_override(text)
            if override.is_sweep_override():
                key = text.partition("=")[0]
                works = f"write text with a comma in quotes, such as '{key}=\"one,two\"'"
                raise UserError(f"override {text[:100]!r}: one run takes one value; {works}")
            _apply(override, config)
        except UserError:
            raise
        except _LIBRARY_ERRORS as error:
            if "=" not in text and not text.startswith("~"):
                works = "write key=value in one word, without spaces, such as grpo.max_num_steps=5"
                raise UserError(f"override {text[:100]!r} has no value; {works}") from None
            raise UserError(f"override {text[:100]!r}: {_shorten_error(error)}") from None
    for key in find_secret_keys(OmegaConf.to_container(config, resolve=False)):
        raise UserError(
            f"{key} is a secret, and runs save their configuration; leave it out and set the variable that its "
            f"library reads, such as WANDB_API_KEY or HF_TOKEN"
        )
    return config


def _apply(override: Override, config: DictConfig) -> None:
    """Set, add or remove a key. A mapping is merged into the one that is there."""
    key, value = override.key_or_group, override.value()
    there = OmegaConf.select(config, key)
    if override.package is not None:
        raise UserError(f"override {override.input_line!r}: a key has no @; write it as section.key")
    if override.is_delete():
        if there is None or value not in (None, there):
            raise UserError(f"override {override.input_line!r}: {key} is {there}, so there is nothing to remove")
        parent, _, name = key.rpartition(".")
        del (OmegaConf.select(config, parent) if parent else config)[name]
        return
    if override.is_add() and there is not None and not isinstance(value, dict | list):
        raise UserError(f"override {override.input_line!r}: {key} is there already; write ++{key}=... to replace it")
    OmegaConf.update(config, key, value, merge=True, force_add=True)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Override:
    """Read one override by hydra's grammar. That takes a millisecond, and a bench loads the same words many times."""
    return OverridesParser.create().parse_override(text)


def _read_override(text: str) -> Override:
    """Read one override. A value that hydra's grammar has no words for is text, as it stands.

    Such are umlauts, `=`, braces inside a sentence, and the blanks at the ends of a text. A value that begins like a
    list, a mapping or a quoted text keeps the grammar's own error. `~/` is the home folder, as in a shell.
    """
    match = _KEY_VALUE.fullmatch(text)
    blanks = _BLANKS.fullmatch(text) if match is None else None
    if blanks is not None:
        works = f"write it without blanks around =, as {blanks['key']}={blanks['value']}"
        raise UserError(f"override {text[:100]!r}: {works[:200]}")
    if match is None:
        return _parse(text)
    key, value = match["key"], match["value"]
    if value.startswith("~/"):
        return _make_literal(key, os.path.expanduser(value))
    try:
        override = _parse(text)
    except HydraException:
        if not value.strip() or value.lstrip()[0] in "[{'\"":
            raise
        return _make_literal(key, value)
    if override.is_sweep_override():
        return _make_literal(key, value) if _SENTENCE.search(value) else override
    read = override.value()
    return _make_literal(key, value) if isinstance(read, str) and read != value and read == value.strip() else override


def _make_literal(key: str, value: str) -> Override:
    return dataclasses.replace(_parse(f"{key}=x"), _value=value)


def resolve_config(config: DictConfig, *, complete: bool = True) -> dict[str, Any]:
    """Resolve the interpolations of a configuration.

    Args:
        config: the configuration.
        complete: whether every value must be there.

    Raises:
        UserError: an interpolation cannot be resolved, or a value would be a secret that the run stores or sends.
    """
    with bound_interpolations():
        try:
            resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=complete)
        except _LIBRARY_ERRORS as error:
            raise UserError(f"configuration: {_shorten_error(error)}") from None
    refuse_secret_values(resolved)
    return dict(resolved)  # type: ignore[arg-type]


def refuse_secret_values(config: Any) -> None:
    """Raise UserError for a value that redaction would hide: a run writes its values, and loggers send them.

    A value of any length would keep the search busy for as long: `${mul:xx,1000000000}` is one, to NeMo-RL's `mul`.
    """
    for key, text in walk_nodes(config):
        if isinstance(text, str) and len(text) > MAX_VALUE:
            raise UserError(f"{key[:200]} has {len(text):,} characters, and {MAX_VALUE:,} are allowed; shorten it")
    for key in find_secret_values(config):
        raise UserError(
            f"{key} is or holds a secret, and runs save and send their configuration; leave it out and let the library "
            "read the variable by itself"
        )


@contextmanager
def bound_interpolations() -> Iterator[None]:
    """Within the block at most MAX_INTERPOLATIONS are resolved. Ten lines can stand for billions of them."""
    resolve, left = Container.resolve_parse_tree, MAX_INTERPOLATIONS

    def counted(self: Container, *args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise InterpolationResolutionError(
                f"more than {MAX_INTERPOLATIONS:,} interpolations are resolved; some of them contain each other"
            )
        return resolve(self, *args, **named)

    Container.resolve_parse_tree = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Container.resolve_parse_tree = resolve  # type: ignore[method-assign]


def _shorten_error(error: Exception) -> str:
    """Return a library's message on one line, shortened, or its type if the message is empty."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def backend_of(config: Mapping[str, Any]) -> str:
    """The back end of a resolved configuration.

    The key `backend` decides. NeMo-RL's own YAMLs do not have this key. They have the sections `cluster` and `data`,
    and they do not have `task`.
    """
    if "backend" not in config:
        if not {"cluster", "data", "task"} & config.keys():
            raise UserError(
                "the configuration has no task (CPU) and no cluster (NeMo-RL), so it is no whole configuration; an "
                "overlay stands behind one, as in configs/qwen2.5-math-7b.yaml configs/methods/grpo8.yaml"
            )
        return "nemo_rl" if "task" not in config else "embedded"
    backend = str(config["backend"])
    if backend not in BACKENDS:
        raise UserError(f"backend={backend}: no such back end; {suggest_name(backend, BACKENDS, 'choices')}")
    return backend
