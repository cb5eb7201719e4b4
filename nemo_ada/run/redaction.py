"""Keep secrets out of everything that is written or shown: logs, configurations, provenance, pages, errors.

A secret is recognised by its name, its value or its form. Names: *_TOKEN, *_KEY, *SECRET, *PASSWORD in the environment,
and similar ones in configurations and on command lines (but not `input_key` or `eos_token`). Values: those of such
variables of this process. Forms: tokens of the usual hubs, headers, keys in PEM, .netrc. Only this module and
slurm/submission.py have these rules; slurm/submission.py knows fewer names.

Why not the rules of detect-secrets: it looks for secrets in files of source code. It has no rule for options
(`--api-key V`), headers, cookies, .netrc, nor for the tokens of Hugging Face, W&B and NVIDIA, which are what runs hold
here; and it would bring `requests` into every installation.
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
_VALUE = r"(?:(?<=')[^']*|(?<=\")[^\"]*|[^\s\"',;}\]]+)"
_PAIR = re.compile(
    rf"(?<![\w.+-])(?P<name>{_NAME})(?P<between>\\?[\"']?\s*(?:=|:(?!//)|%3[AD])\s*\\?[\"']?)(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_BARE = re.compile(r"(?P<before>\b(?:setenv|setx|ENV|set[ \t]+-\w{1,9})[ \t]+(?P<name>\w+)[ \t]+)(?P<value>\S+)")
"""What some shells and Dockerfiles write in place of NAME=value."""
_CELL = re.compile(rf"(?P<before>[|│┃][ ]*+(?P<name>{_NAME})[ ]*+[|│┃][ ]*+)(?P<value>[^|│┃\s][^|│┃\n]*)", re.I)
_TABBED = re.compile(rf"(?<![\w.+-])(?P<before>(?P<name>{_NAME})[ ]?\t[ ]*+)(?P<value>[^\s]+)", re.I)
_OPTION = re.compile(rf"(?<![\w.+-])(--?(?:{_NAME}|pass|pwd)[ ]+)(?!-)\S+", re.IGNORECASE)
_EXPORT = re.compile(rf"\b([A-Z][A-Z0-9_]*(?:_KEY|APIKEY|_KEY_ID|_PASS|_PWD|_AUTH)=[\"']?)(?!\[hidden){_VALUE}")
_NO_WORDS = "(?=[a-z_-]*[A-Z0-9]|[a-z]{16})"  # hf_config_overrides is a key of NeMo-RL
_TOKENS = (  # what starts a token, and its least length behind that; the issuers document these
    (rf"(?:hf|gh[oprsu]|glpat|gldt|glrt|nvapi|github_pat|dckr_pat|gsk|pplx|xox[aboprs]|xapp)[_-]{_NO_WORDS}", 16),
    (rf"(?:sk|rk|wandb)[_-]{_NO_WORDS}", 16),
    (r"(?:npm_|pypi-|do[opr]_v1_|r8_|shp(?:at|ca|pa|ss)_|lin_api_|tskey-|AGE-SECRET-KEY-1|rubygems_|whsec_|pul-)", 16),
    (r"(?:xai|tvly|csk|fw|glsa|glc|figd|lsv2_[ps]t|pcsk|sntrys|sntryu|phc|phx|nfp|ops|dckr_oat|CFPAT|PMAK)[_-]", 16),
    (r"gl(?:agent|cbt|ft|imt|oas|ptt|soat)-", 16), (r"hv[sbr]\.", 16), (r"dapi(?=[0-9a-f]{32}\b)", 32),
    (r"SK(?=[0-9a-f]{32}\b)", 32), (r"key-(?=[0-9a-f]{32}\b)", 32), (r"(?:ATATT3|ATCTT3|ATBB)", 16), (r"LTAI", 12),
    (r"AIza", 30), (r"ya29\.", 16), (r"(?:AKIA|ASIA)(?=[0-9A-Z]{16}\b)", 16), (r"SG\.[\w-]{16,}\.", 16),
    (r"(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}\.", 1), (r"\d{8,10}:AA", 30),
)  # fmt: skip
_HEADERS = (  # before the pairs: a header's value has more than one word
    (re.compile(r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:[a-z][\w-]*\s+)?[^\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bcookie\\?[\"']?\s*:\s*\\?[\"']?)[^\"'\n]+"), rf"\1{HIDDEN}"),
)
_FORMS = (
    *((re.compile(rf"\b{start}[A-Za-z0-9_-]{{{least},}}"), HIDDEN) for start, least in _TOKENS),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(?i)(\b(?:bearer|basic)\s+)(?=\S*[\d=/+._-])[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\blogin\s+\S+\s+(?:account\s+\S+\s+)?password\s+)\S+"), rf"\1{HIDDEN}"),  # .netrc
    (re.compile(r"(?i)((?<!\S)(?:-u|--user)[ =]++)[^\s:]++:\S+"), rf"\1{HIDDEN}"),  # curl
    (
        re.compile(
            r"(?i)(\b(?:sshpass|mysql\w{0,9}|mariadb|(?:docker|podman|helm|oras|skopeo)[ ](?:\w{1,9}[ ])?login)"
            r"(?:[ ][^\n|;&]{0,200}?)?[ ]-p[ =]?|\bredis-cli(?:[ ][^\n|;&]{0,200}?)?[ ]-a[ ])[^\s]+"
        ),
        rf"\1{HIDDEN}",
    ),  # programs whose option for a password has one letter
    (re.compile(r"(?<![\w+/-])(?:MII[A-Za-z0-9+/]{24,}|b3BlbnNzaC1rZXkt[A-Za-z0-9+/]*)={0,2}"), HIDDEN),
    (
        re.compile(
            r"(?<![\w+/=.-])(?!/)(?=[A-Z0-9+/]{0,75}[a-z])(?=[a-z0-9+/]{0,75}[A-Z])(?=[A-Za-z+/]{0,75}\d)"
            r"[A-Za-z0-9+/]{64,76}={0,2}(?![\w+/=.-])"
        ),
        HIDDEN,
    ),  # the first line of a key in PEM, and another one that stands alone
    (re.compile(r"(?i)([?&](?:sig|signature|key|x-amz-(?:signature|credential))=)[^&\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)[\w/-]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\\?[\"']key\\?[\"']\s*:\s*\\?[\"'])[0-9a-f]{32}\b"), rf"\1{HIDDEN}"),  # kaggle.json
    (  # / or @ in a password; the next address ends the search, so it stays linear
        re.compile(r"(://)[^/\s@:]*+:(?!\d+/)[^\s\"'<>:]*(?::(?!//)[^\s\"'<>:]*)*@(?=[\w.-]+(?:[:/?]|\b))"),
        rf"\1{HIDDEN}@",
    ),
    (
        re.compile(r"(?i)((?:_proxy|_url|_uri|dsn)[\"']?\s?[=:]\s?[\"']?)[^\s/@:=\"']++:[^\s@\"']{1,256}@"),
        rf"\1{HIDDEN}@",
    ),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{HIDDEN}@"),
)


def is_secret_name(name: str) -> bool:
    """Return whether a configuration key (dotted or not) or an option of this name holds a secret."""
    return _NAMED.fullmatch(name) is not None and _SYMBOL.fullmatch(name) is None


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable may hold a secret. This covers more names than `is_secret_name`."""
    return _VARIABLE.fullmatch(name) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without secrets."""
    return {name: value for name, value in environment.items() if not is_secret_variable(name)}


def hide(text: str) -> str:
    """Replace the secrets of a text by HIDDEN."""
    for value in _values():
        text = text.replace(value, HIDDEN)
    for form, replacement in _HEADERS:
        text = form.sub(replacement, text)
    text = _PAIR.sub(_hidden_pair, text)
    for form in (_BARE, _CELL, _TABBED):
        text = form.sub(_hidden_word, text)
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    text = _EXPORT.sub(rf"\1{HIDDEN}", text)
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def hide_in(value: Any, depth: int = 0) -> Any:
    """Replace the values of secret keys of a configuration, and secrets within other values, by HIDDEN."""
    if isinstance(value, str):
        return hide(value)
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_secret_name(str(key)) and _holds(inner, str(key)) else hide_in(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [hide_in(inner, depth + 1) for inner in value]
    return value


def command_line(arguments: Sequence[str]) -> str:
    """Return a command for records: quoted for a shell, secrets hidden."""
    shown = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = equals and is_secret_name(name.lstrip("+~-"))
        shown.append(f"{name}={HIDDEN}" if secret else hide(argument))
    return hide(shlex.join(shown))


def secret_keys(config: Any) -> Iterator[str]:
    """Yield the dotted keys of a configuration that hold a secret."""
    for key, value in nodes(config):
        if not isinstance(value, Mapping) and is_secret_name(key) and _holds(value, key):
            yield key


def secret_values(config: Any) -> Iterator[str]:
    """Yield the dotted keys of a resolved configuration whose text `hide` would change, or whose name is a secret.

    An interpolation can put a secret of the environment anywhere, such as into the name of a project that W&B gets.
    """
    keys, values = [key for key, _ in nodes(config)], _values()
    texts = [(key, text) for key, text in nodes(config) if isinstance(text, str) and text]
    whole = "\n\0\n".join(text for _, text in texts)
    if hide(whole) != whole:
        yield from (hide(key) for key, text in texts if hide(text) != text)
    yield from (hide(key) for key in keys if any(value in key for value in values))


def nodes(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of a configuration, also within lists, with its value: a section before what it holds."""
    yield key, node
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    for name, inner in pairs:
        yield from nodes(inner, f"{key}.{name}" if key else str(name))


def printable(text: str) -> str:
    """Replace the characters that steer a terminal. A foreign file's name may hold some."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


class Redacted(logging.Filter):
    """A filter for log handlers. It hides secrets in messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide the secrets of a record, and what would steer a terminal. The record passes."""
        record.msg, record.args = printable(hide(record.getMessage()[:MAX_RECORD])), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = printable(hide("".join(traceback.format_exception(*record.exc_info)))).rstrip()
        return True


def _holds(value: Any, name: str) -> bool:
    """Return whether a key of this secret name holds a secret. `forward_pass: 2` does not, nor `api_key: dummy`."""
    if isinstance(value, str) and _DUMMY.fullmatch(value):
        return False
    number = isinstance(value, (bool, int, float))
    return value is not None and value != "" and not isinstance(value, bool) and not (number and _WEAK.fullmatch(name))


def _hidden_pair(match: re.Match[str]) -> str:
    prose = match["name"].lower() == "token" and match["between"].strip() == ":" and _is_prose(match)
    plain = _WEAK.fullmatch(match["name"]) and re.fullmatch(r"[\d.]+|true|false", match["value"], re.IGNORECASE)
    if plain or prose or _SYMBOL.fullmatch(match["name"]) or match["value"] in ("", "null", "None", HIDDEN.rstrip("]")):
        return match[0]
    return f"{match['name']}{match['between']}{HIDDEN}"


def _is_prose(match: re.Match[str]) -> bool:
    """Return whether a text is of words, as "no such token: x" and "unexpected token : in"."""
    value, spaced = match["value"], match["between"][:1].isspace()
    return len(value) < MIN_LENGTH or not (spaced or any(map(str.isdigit, value)))


def _hidden_word(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"].rstrip()
    said = re.fullmatch(r"[\d.,:%=-]*|null|none|true|false|\[hidden\]", value, re.IGNORECASE)
    if said or _SYMBOL.fullmatch(name) or not (is_secret_name(name) or is_secret_variable(name)):
        return match[0]
    return f"{match['before']}{HIDDEN}{match['value'][len(value) :]}"


def _values() -> list[str]:
    """Return the values of this process's secret variables, and passwords in addresses of others, longest first."""
    values = {value for name, value in os.environ.items() if is_secret_variable(name) and len(value) >= MIN_LENGTH}
    for value in os.environ.values():
        if (found := _PASSWORD.match(value)) is not None:
            values |= {password for password in (found[1], unquote(found[1])) if len(password) >= MIN_PASSWORD}
    return sorted(values, key=len, reverse=True)
