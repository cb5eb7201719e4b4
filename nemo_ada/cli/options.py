"""Options that are fields of a section or a dataclass. Their type, bounds, default and meaning stand there once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, Json, TypeAdapter, create_model

from nemo_ada.config.parsing import Section, parse
from nemo_ada.errors import UserError
from nemo_ada.standing import with_whole_paths

KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Fields:
    """Marks a parameter of a command. These fields of its section are options, whose defaults are the parameter's.

    With `of` the parameter is a dict of the fields that were given.

    Args:
        names: The fields.
        of: The section, where the parameter is a dict.
        unset: With `of`: what the help says happens where the option is not given.
        renamed: The name of an option -> its field.
    """

    def __init__(self, *names: str, of: Any = None, unset: str = "", **renamed: str) -> None:
        self.of, self.unset = of, unset
        self.field_of = {name: name for name in names} | renamed


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that its parameters name with `Fields`.

    Its paths are made absolute, those of its fields as well, because the command stands in a private folder while it
    runs (`nemo_ada.standing`).
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    marked: dict[str, tuple[Fields, Any, Any]] = {}
    for name, parameter in signature.parameters.items():
        kind, *marks = get_args(parameter.annotation) or [None]
        if marks and isinstance(marks[0], Fields):
            default = None if marks[0].of else parameter.default
            marked[name] = marks[0], marks[0].of or kind, default
            parameters += _make_parameters(*marked[name])
        else:
            parameters.append(parameter.replace(kind=KEYWORD))

    @with_whole_paths
    def run(*words: Any, **given: Any) -> None:
        for name, (mark, kind, default) in marked.items():
            values = _read_values(mark, kind, {option: given.pop(option, None) for option in mark.field_of})
            if isinstance(default, BaseModel):
                given[name] = default.model_copy(update=values)
            else:
                given[name] = values if default is None else replace(default, **values)
        command(*words, **given)

    del run.__wrapped__  # type: ignore[attr-defined]  # it has no signature of its own
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _make_parameters(mark: Fields, kind: Any, default: Any) -> list[inspect.Parameter]:
    """Return typer's parameters for the fields of a section."""
    hints, about = get_type_hints(kind, include_extras=True), TypeAdapter(kind).json_schema()["properties"]
    made = []
    for name, field in mark.field_of.items():
        usual, text = getattr(default, field, None), " ".join(about[field]["description"].split()).removesuffix(".")
        read, how = _choose_reader(hints[field])
        words = text if text[1:2].isupper() else text[:1].lower() + text[1:]
        told = how + words + (f" (default: {mark.unset})" if mark.unset else "")
        option = typer.Option(*[f"-{name}"] * (len(name) == 1), f"--{name.replace('_', '-')}", help=told)
        if not isinstance(usual, str | int | float):  # the default of a mapping or a list is not shown
            read, usual = read | None, None
        made.append(inspect.Parameter(name, KEYWORD, default=usual, annotation=Annotated[read, option]))
    return made


def _choose_reader(hint: Any) -> tuple[Any, str]:
    """Return what typer reads for a field, and how that is written where its type does not say it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return str, f"{' or '.join(arguments)}; "
    if origin is dict:
        return str, "JSON; "
    if origin is tuple:
        return list[_choose_reader(arguments[0])[0]], "repeatable; "  # type: ignore[misc]
    inner = [one for one in arguments if one is not NoneType]
    return _choose_reader(inner[0]) if inner else (hint, "")


def _read_values(mark: Fields, kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of the fields that were given. Raises UserError that names the options."""
    hints = get_type_hints(kind, include_extras=True)
    values = {name: value for name, value in given.items() if value is not None and value != []}
    kinds: dict[str, Any] = {name: (hints[mark.field_of[name]], ...) for name in values}
    for name, (hint, _) in kinds.items():
        if get_origin(hint) is dict:
            kinds[name] = Annotated[hint, Json()], ...
    try:
        found = parse(create_model("Options", __config__=Section.model_config, **kinds), values)
    except UserError as problem:
        raise UserError("\n".join(map(_name_option, str(problem).splitlines()))) from None
    return {mark.field_of[name]: getattr(found, name) for name in values}


def _name_option(line: str) -> str:
    """Return a message about a field as one about its option."""
    name, sign, rest = line.partition("=")
    return f"--{name.replace('_', '-')}{sign}{rest}"
