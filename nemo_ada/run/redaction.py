"""Keep secrets out of everything that is written or shown: logs, configurations, provenance, pages, errors.

A secret is recognised by its name, its value or its form. Names: *_TOKEN, *_KEY, *SECRET, *PASSWORD in the environment,
and similar ones in configurations and on command lines (but not `input_key` or `eos_token`). Values: those of such
variables of this process. Forms: tokens of the usual hubs. Only this module and slurm/lib.sh have these rules.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "[hidden]"
MIN_LENGTH = 8  # of a variable's value that is searched for in texts
MAX_DEPTH = 100  # levels of a configuration; deeper values are hidden

_WORD = (
    r"(?:token|secret|password|passwd|passphrase|credentials?|(?:api|access|secret|private|auth|wandb)_?key(?:_id)?)"
)
_NAME = rf"(?:[\w.+-]*[_.-])?{_WORD}"
_NAMED = re.compile(_NAME, re.IGNORECASE)
_SYMBOL = re.compile(r"(?:.*[_.-])?(?:pad|bos|eos|unk|sep|cls|mask|stop|think|image|audio|video)_token", re.IGNORECASE)
_VARIABLE = re.compile(r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|_KEY|KEY_ID)", re.IGNORECASE)

_PAIR = re.compile(
    rf"(?<![\w.+-])(?P<name>{_NAME})(?P<between>[\"']?\s*(?:=|:(?!//))\s*[\"']?)(?P<value>(?<=')[^']*|(?<=\")[^\"]*|[^\s\"',;}}\]]+)",
    re.IGNORECASE,
)
_OPTION = re.compile(rf"(?<![\w.+-])(--{_NAME}[ ]+)\S+", re.IGNORECASE)
_FORMS = (
    (re.compile(r"\b(?:hf|sk|ghp|gho|glpat|wandb|nvapi|xox[abp])[_-][A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\bgithub_pat_\w{16,}|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), HIDDEN),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{HIDDEN}@"),
)


def is_secret_name(name: str) -> bool:
    """Whether a configuration key (dotted or not) or option of this name holds a secret."""
    return _NAMED.fullmatch(name) is not None and _SYMBOL.fullmatch(name) is None


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name may hold a secret. Covers more names than `is_secret_name`."""
    return _VARIABLE.fullmatch(name) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without secrets."""
    return {name: value for name, value in environment.items() if not is_secret_variable(name)}


def hide(text: str) -> str:
    """The text with its secrets replaced by HIDDEN."""
    for value in _values():
        text = text.replace(value, HIDDEN)
    text = _PAIR.sub(_hidden_pair, text)
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def hide_in(value: Any, depth: int = 0) -> Any:
    """A configuration with the values of secret keys, and secrets within other values, replaced by HIDDEN."""
    if isinstance(value, str):
        return hide(value)
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_secret_name(str(key)) and _holds(inner) else hide_in(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [hide_in(inner, depth + 1) for inner in value]
    return value


def command_line(arguments: Sequence[str]) -> str:
    """A command for records: quoted for a shell, secrets hidden."""
    shown = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = equals and is_secret_name(name.lstrip("+~-"))
        shown.append(f"{name}={HIDDEN}" if secret else hide(argument))
    return hide(shlex.join(shown))


def secret_keys(config: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Dotted keys of a configuration that hold a secret."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from secret_keys(value, f"{name}.", depth + 1)
        elif is_secret_name(name) and _holds(value):
            yield name


class Redacted(logging.Filter):
    """A filter for log handlers: hides secrets in messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hide(record.getMessage()), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = hide("".join(traceback.format_exception(*record.exc_info))).rstrip()
        return True


def _holds(value: Any) -> bool:
    return value is not None and value != "" and not isinstance(value, bool)


def _hidden_pair(match: re.Match[str]) -> str:
    prose = match["name"].lower() == "token" and match["between"].strip() == ":"  # "no such token: x"
    if prose or _SYMBOL.fullmatch(match["name"]) or match["value"] in ("", "null", "None", HIDDEN.rstrip("]")):
        return match[0]
    return f"{match['name']}{match['between']}{HIDDEN}"


def _values() -> list[str]:
    """Values of this process's secret variables, longest first."""
    values = {value for name, value in os.environ.items() if is_secret_variable(name) and len(value) >= MIN_LENGTH}
    return sorted(values, key=len, reverse=True)
