"""Keep secrets out of everything that is written or shown: logs, configurations, provenance, pages, errors.

A secret is recognised by its name or its value. Names: *_TOKEN, *_KEY, *SECRET, *PASSWORD in the environment, and
similar ones in configurations, headers and on command lines (but not `input_key` or `eos_token`): what stands behind
them is hidden. Values: those of such variables of this process, wherever they stand. Besides, what stands in an address
before `@`. A secret that no variable holds and no name announces is not recognised: forms of tokens change, and each
one more took longer than the text that it was looked for in. Every search takes time that is linear in the text.

Only this module and slurm/ have these rules; slurm/ knows fewer names.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

HIDDEN = "[hidden]"
MIN_LENGTH = 8  # shorter values of variables are not searched for in texts
MIN_PASSWORD = 6  # the same for a password in the address of a proxy or a database
MAX_RECORD = 100_000  # letters of a record of a log; a library may log a whole request
MAX_DEPTH = 100  # levels of a configuration; deeper values are hidden

_KEY_OF = r"(?:api|access|secret|private|auth|wandb|encryption|signing|account|master|subscription|license|ssh)"
_WORD = (
    r"(?:[\w.+-]*[_.-])?"  # what stands in front of the next words, separated
    r"(?:token|secret|passphrase|credentials?|authorization|cookies?|dsn|connection_?string|webhook(?:_url)?)"
    r"|[\w.+-]*(?:password|passwd|passcode)"
    rf"|[\w.+-]*{_KEY_OF}[_-]?key(?:[_-]?id)?"
    r"|[\w.+-]*(?:access|api|auth|bearer|client|id|hub|refresh|session)(?:token|secret)"
)
_NAME = rf"(?:{_WORD}|[\w.+-]*[_.-](?:pass|pwd))"
_NAMED = re.compile(_NAME, re.IGNORECASE)
_DUMMY = re.compile(r"(?:dummy|empty|none|unused)(?:[_-](?:api[_-])?(?:key|token))?", re.IGNORECASE)
"""What configs write where a server wants a key and checks none."""
_WEAK = re.compile(r"(?:.*[_.-])?(?:pass|pwd)", re.IGNORECASE)  # a number under such a name counts passes
_SYMBOL = re.compile(r"(?:.*[_.-])?(?:pad|bos|eos|unk|sep|cls|mask|stop|think|image|audio|video)_token", re.IGNORECASE)
_VARIABLE = re.compile(
    r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIALS?|_KEY|APIKEY|KEY_ID|_AUTH|COOKIES?|DSN"
    r"|CONNECTION_STRING|WEBHOOK(?:_URL)?|_PAT|JWT)|(?:.*_)?PASS|.+_PWD",
    re.IGNORECASE,
)

_PASSWORD = re.compile(r"(?:[\w+.-]{1,20}://)?[^/\s@:]*+:([^\s]+)@[\w.\[-]")
_NAMED_TEXT = re.compile(
    r"(?<![\w.+-])(?P<name>[\w.+-]++)"
    r"(?:(?P<pair>\\?[\"']?\s*+(?:=|:(?!//)|%3[AD])\s*+\\?[\"']?)"  # NAME=value, "name": "value"
    r"|(?P<cell>[ ]*+[|│┃][ ]*+)|(?P<tab>[ ]?\t[ ]*+)"  # tables
    r"|(?P<blank>[ ]++(?!-)))",  # --name value, setenv NAME value
    re.IGNORECASE,
)
"""A word and what can stand between a name and its value. No part can be read in two ways, so it takes linear time."""
_LONGEST = 100  # characters at the end of a word that are looked at for a name
_VALUE = re.compile(r"(?<=')[^']*|(?<=\")[^\"]*|[^\s\"',;}\]]+")
_HEADERS = (  # a header's value has more than one word
    (re.compile(r"(?:.*-)?authorization", re.IGNORECASE), re.compile(r"(?:[a-zA-Z][\w-]*\s+)?[^\s\"']+")),
    (re.compile(r"(?:.*-)?cookie", re.IGNORECASE), re.compile(r"[^\"'\n]+")),
)
_CELL, _WORD_OF = re.compile(r"[^|│┃\s][^|│┃\n]*"), re.compile(r"\S+")
_SHELL = re.compile(r"\b(?:setenv|setx|ENV|set[ \t]{1,9}-\w{1,9})[ \t]{1,9}\Z")
"""What stands before a name in some shells and Dockerfiles, in place of NAME=value."""
_SAID = re.compile(r"[\d.,:%=-]*|null|none|true|false|\[hidden.*", re.IGNORECASE)  # what a table says under such a name
_ADDRESS = re.compile(r"(://)[^/\s@]{1,1000}@")


def is_secret_name(name: str) -> bool:
    """Return whether a configuration key (dotted or not) or an option of this name holds a secret."""
    return _NAMED.fullmatch(name) is not None and _SYMBOL.fullmatch(name) is None


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable may hold a secret. This covers more names than `is_secret_name`."""
    return _VARIABLE.fullmatch(name) is not None


def drop_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that may hold a secret."""
    return {name: value for name, value in environment.items() if not is_secret_variable(name)}


def hide(text: str) -> str:
    """Replace the secrets of a text by HIDDEN: values of variables, what stands behind a name, and `://user:pass@`."""
    for value in _list_secret_values():
        text = text.replace(value, HIDDEN)
    shown, begin, position = [], 0, 0
    while (match := _NAMED_TEXT.search(text, position)) is not None:
        start, end = _find_value(match, text)
        position = max(end, match.end())
        if end > start:
            shown += [text[begin:start], HIDDEN]
            begin = end
    return _ADDRESS.sub(rf"\1{HIDDEN}@", "".join([*shown, text[begin:]]))


def _find_value(match: re.Match[str], text: str) -> tuple[int, int]:
    """Return where the secret behind a name begins and ends. Both are the same where there is none."""
    none = match.end(), match.end()
    name = match["name"][-_LONGEST:]
    if match["blank"] is not None:  # --name value, setenv NAME value; any other word before a blank is prose
        option = match["name"].startswith("-") and (is_secret_name(name) or name.lstrip("-") in ("pass", "pwd"))
        told = option or (_is_known(name) and _SHELL.search(text, max(0, match.start() - _LONGEST), match.start()))
        value = _WORD_OF.match(text, match.end()) if told else None
    elif match["pair"] is None:  # a table: a cell between bars, a word behind a tab
        value = (_CELL if match["tab"] is None else _WORD_OF).match(text, match.end()) if _is_known(name) else None
    elif not (is_secret_name(name) or (name.isupper() and is_secret_variable(name))):
        return none
    else:
        form = next((form for header, form in _HEADERS if header.fullmatch(name)), _VALUE)
        value = form.match(text, match.end())
        if value is not None and _is_no_secret(name, match["pair"], value[0]):
            return none
    if value is None or (match["pair"] is None and _SAID.fullmatch(value[0].rstrip())):
        return none
    return value.start(), value.start() + len(value[0].rstrip())


def hide_in(value: Any, depth: int = 0) -> Any:
    """Replace the values of secret keys of a configuration, and secrets within other values, by HIDDEN."""
    if isinstance(value, str):
        return hide(value)
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_secret_name(str(key)) and _holds_secret(inner, str(key)) else hide_in(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [hide_in(inner, depth + 1) for inner in value]
    return value


def quote_command(arguments: Sequence[str]) -> str:
    """Return a command for records: quoted for a shell, secrets hidden."""
    shown = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = equals and is_secret_name(name.lstrip("+~-"))
        shown.append(f"{name}={HIDDEN}" if secret else hide(argument))
    return hide(shlex.join(shown))


def find_secret_keys(config: Any) -> Iterator[str]:
    """Yield the dotted keys of a configuration that hold a secret."""
    for key, value in walk_nodes(config):
        if not isinstance(value, Mapping) and is_secret_name(key) and _holds_secret(value, key):
            yield key


def find_secret_values(config: Any) -> Iterator[str]:
    """Yield the dotted keys of a resolved configuration whose text `hide` would change, or whose name is a secret.

    An interpolation can put a secret of the environment anywhere, such as into the name of a project that W&B gets.
    """
    keys, values = [key for key, _ in walk_nodes(config)], _list_secret_values()
    texts = [(key, text) for key, text in walk_nodes(config) if isinstance(text, str) and text]
    whole = "\n\0\n".join(text for _, text in texts)
    if hide(whole) != whole:
        yield from (hide(key) for key, text in texts if hide(text) != text)
    yield from (hide(key) for key in keys if any(value in key for value in values))


def walk_nodes(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of a configuration, also within lists, with its value: a section before what it holds."""
    yield key, node
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    for name, inner in pairs:
        yield from walk_nodes(inner, f"{key}.{name}" if key else str(name))


def make_printable(text: str) -> str:
    """Replace the characters that steer a terminal. A foreign file's name may hold some."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


class Redacted(logging.Filter):
    """A filter for log handlers. It hides secrets in messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide the secrets of a record, and what would steer a terminal. The record passes."""
        record.msg, record.args = make_printable(hide(record.getMessage()[:MAX_RECORD])), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = make_printable(hide("".join(traceback.format_exception(*record.exc_info)))).rstrip()
        return True


def _holds_secret(value: Any, name: str) -> bool:
    """Return whether a key of this secret name holds a secret. `forward_pass: 2` does not, nor `api_key: dummy`."""
    if isinstance(value, str) and _DUMMY.fullmatch(value):
        return False
    number = isinstance(value, (bool, int, float))
    return value is not None and value != "" and not isinstance(value, bool) and not (number and _WEAK.fullmatch(name))


def _is_known(name: str) -> bool:
    return (is_secret_name(name) or is_secret_variable(name)) and _SYMBOL.fullmatch(name) is None


def _is_no_secret(name: str, between: str, value: str) -> bool:
    """Return whether a pair counts passes (`first_pass=12`), is of words ("no such token: x"), or holds nothing."""
    counts = _WEAK.fullmatch(name) and re.fullmatch(r"[\d.]+|true|false", value, re.IGNORECASE)
    spaced = between[:1].isspace() or any(map(str.isdigit, value))
    prose = name.lower() == "token" and between.strip() == ":" and not (spaced and len(value) >= MIN_LENGTH)
    return bool(counts) or prose or value in ("", "null", "None") or value.startswith(HIDDEN[:-1])


def _list_secret_values() -> list[str]:
    """Return the values of this process's secret variables, and passwords in addresses of others, longest first."""
    values = {value for name, value in os.environ.items() if is_secret_variable(name) and len(value) >= MIN_LENGTH}
    for value in os.environ.values():
        if (found := _PASSWORD.match(value)) is not None:
            values |= {password for password in (found[1], unquote(found[1])) if len(password) >= MIN_PASSWORD}
    return sorted(values, key=len, reverse=True)
