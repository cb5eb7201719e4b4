"""Read the metrics of steps out of what a run printed.

Three forms are common. A line has the step and then pairs (`step:7 - critic/score/mean:0.3 - ...`, verl). A dictionary
follows the step or stands alone (TRL, slime, miles, OpenRLHF, SkyRL). Or a heading has the step, and the lines below it
a pair each (NeMo-RL), or a line is cut into cells (prime-rl). Between them stands anything, for example the text of
responses with their own "Step 1:". So a step counts only where it stands as one of these forms has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nemo_ada.run.json_lines import Record

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\n]{0,300}\x07")
_RAY = re.compile(r"^[ \t]*\((?:\S+ )?pid=\d+[^)\n]*\)[ \t]?", re.MULTILINE)
"""Ray puts the process in front of each line: (TaskRunner pid=123, ip=10.0.0.7)."""
_RANK = re.compile(r"^ {0,3}\d{1,4}: (?=\S| )", re.MULTILINE)
"""`srun --label` puts the number of the task in front of each line."""
_REPEATED = re.compile(r"\s?\[repeated \d{1,9}x[^\]\n]{0,200}\]")
_PLACE = re.compile(r"(?<![ \t])[ \t]{2,400}\S{1,200}\.py:\d{1,9}[ \t]{0,400}$", re.MULTILINE)
"""Rich puts the place in the program behind a line, also where it breaks the line."""
_TYPES = re.compile(
    r"\b(?:np\.\w+|numpy\.\w+|tensor|torch\.tensor|Decimal)\(['\"]?([-+\w.]{1,40})['\"]?[^()\n]{0,60}\)"
)

# Every repetition has a bound, because a log may hold anything, and a pattern must not take hours over it.
_NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)"
_KEY = r"(?<![\w./@%()+])[A-Za-z_][\w./@%()+-]{0,150}"
_CHAIN = re.compile(
    rf"\bstep\s*[:=]\s*(\d{{1,15}})((?:\s{{0,400}}-\s{{1,400}}{_KEY}\s?[:=]\s?(?:{_NUMBER})(?![\w./]))+)"
)
"""verl's line. The dashes may stand at the end of a line, where a console broke it."""
_CHAIN_PAIR = re.compile(rf"-\s{{1,400}}({_KEY})\s?[:=]\s?({_NUMBER})(?![\w./])")
_DICTIONARY = re.compile(r"\{([^{}]{3,200000})\}")
_BEFORE = 300  # characters in front of a dictionary that may have its step
_DICTIONARY_PAIR = re.compile(
    rf"['\"]([^'\"\n]{{1,200}})['\"]\s{{0,9}}:\s{{0,9}}['\"]?({_NUMBER})['\"]?\s{{0,99}}(?=[,}}]|$)"
)
_STEP_BEFORE = re.compile(
    r"\b(?:step|rollout|perf|iteration|iter|update)\b\s*[:=#]?\s*(\d{1,15})\s*(?:/\s*\d+)?\s*[:|,-]?\s*$", re.IGNORECASE
)
_EVALUATION = re.compile(r"\beval(?:uat\w*)?\b[^\n]*$", re.IGNORECASE)
_HEADING = re.compile(r"(?<!=)={3,200} *Step (\d{1,15})(?:/\d{1,15})? *={3,}")
_BELOW = re.compile(
    rf"(?:^[^\w\n]{{0,60}}|[•●] )([A-Za-z][\w /@%().-]{{0,60}}?) ?: {{0,9}}({_NUMBER}) ?(%?)[^\w\n]{{0,60}}$",
    re.MULTILINE,
)
_CELLS = re.compile(r"\bStep (\d{1,15}) ?\|([^\n]*)")
_CELL = re.compile(rf"^\s*([A-Za-z][\w /@.-]{{0,60}}?)[:=]?\s+({_NUMBER})(%?)(?:\s*\S*)\s*$")
_WIDEST_CELL = 120
_ANY_LINE = re.compile(
    r"^[^\n]{0,200}?\b(?:step|iteration|iter|update|epoch)\b\s*[:=#]?\s*(\d{1,15})\b([^\n]*)$", re.I | re.M
)
_ANY_REWARD = re.compile(r"^[^\n]{0,1000}?(?:reward|score)[\w/@]{0,60}\s?[:=]\s?[-+\d.][^\n]*$", re.MULTILINE)
_ANY_PAIR = re.compile(rf"({_KEY})\s?[:=]\s?({_NUMBER})(%?)(?![\w./])")


def read_console(text: str) -> Iterator[Record]:
    """Yield the metrics that a run printed, a record per step or per dictionary, in the order of the text."""
    text = text.replace("\r", "\n")
    for pattern in (_COLOURS, _RANK, _RAY, _REPEATED, _PLACE):
        text = pattern.sub("", text)
    text = _TYPES.sub(r"\1", text)
    found = [*_read_chains(text), *_read_dictionaries(text), *_read_headings(text), *_read_cells(text)]
    found = found or list(_read_lines(text)) or list(_read_pairs(text))
    in_order = [record for _, record in sorted(found, key=lambda placed: placed[0])]
    with_step = [record for record in in_order if "step" in record]
    without = [record for record in in_order if "step" not in record]
    # A few dictionaries without a step beside many with one are a configuration or the like, and the other way round.
    yield from with_step if len(with_step) >= len(without) else without


Placed = tuple[int, Record]
"""Where a record begins in the text, and the record."""


def _read_chains(text: str) -> Iterator[Placed]:
    for chain in _CHAIN.finditer(text):
        pairs = {name: _number(value) for name, value in reversed(_CHAIN_PAIR.findall(chain[2]))}
        yield chain.start(), {"step": float(chain[1]), **pairs}


def _read_dictionaries(text: str) -> Iterator[Placed]:
    """Read dictionaries of Python or JSON. The step stands in them, or before them, or nowhere."""
    for found in _DICTIONARY.finditer(text):
        before = "\n".join(text[max(0, found.start() - _BEFORE) : found.start()].rsplit("\n", 2)[-2:])
        before = before.rpartition("}")[2]
        pairs: Record = {name: _number(value) for name, value in _DICTIONARY_PAIR.findall(found[1])}
        step = _STEP_BEFORE.search(before)
        if not pairs or _EVALUATION.search(before):
            continue
        yield found.start(), ({"step": float(step[1])} if step and "step" not in pairs else {}) | pairs


def _read_headings(text: str) -> Iterator[Placed]:
    """Read the lines below a heading with the step, up to the next heading."""
    heads = list(_HEADING.finditer(text))
    for head, end in zip(heads, [*(head.start() for head in heads[1:]), len(text)], strict=False):
        pairs = {
            name: _number(value, percent)
            for name, value, percent in reversed(_BELOW.findall(text, head.end(), end))  # the first one counts
        }
        if pairs:
            yield head.start(), {"step": float(head[1]), **pairs}


def _read_cells(text: str) -> Iterator[Placed]:
    """Read a line of cells such as `Step 3 | 12.1s | Reward 0.4`."""
    for line in _CELLS.finditer(text):
        parts = (cell for cell in line[2].split("|") if len(cell) <= _WIDEST_CELL)
        cells = [found for part in parts if (found := _CELL.match(part)) is not None]
        if cells:
            yield line.start(), {"step": float(line[1]), **{cell[1]: _number(cell[2], cell[3]) for cell in cells}}


def _read_lines(text: str) -> Iterator[Placed]:
    """Read any line with a step and pairs. It is tried last, because the text of a response may look like this."""
    for line in _ANY_LINE.finditer(text):
        pairs = {name: _number(value, percent) for name, value, percent in reversed(_ANY_PAIR.findall(line[2]))}
        if pairs:
            yield line.start(), {"step": float(line[1]), **pairs}


def _read_pairs(text: str) -> Iterator[Placed]:
    """Read lines with two pairs or more, one of them of a reward, and no step at all."""
    for line in _ANY_REWARD.finditer(text):
        pairs = {name: _number(value, percent) for name, value, percent in reversed(_ANY_PAIR.findall(line[0]))}
        if len(pairs) > 1:
            yield line.start(), {**pairs}


def _number(text: str, percent: str = "") -> float:
    return float(text) / (100.0 if percent else 1.0)
