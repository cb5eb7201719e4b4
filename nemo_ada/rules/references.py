"""The references of local data sets: the job's own judge reads every one of them before anything starts.

It also says what it can hardly compare. Such a reference is not wrong, but only an answer in the same words equals it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.data import lies_here, list_parts
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.rewards import make_judges
from nemo_ada.run.data_files import read_records
from nemo_ada.verify.audit import AUDITED, describe_kinds
from nemo_ada.verify.judge import Judge

MAX_LINES = 1_000_000  # of a data set that are read
ADVICE = "mend the line or leave it out; `nemo-ada data prepare` leaves such lines out and says why"


def check_references(v: Values) -> Findings:
    """The judge can read every reference, and a reward of the user's is tried on the first one."""
    if uses_gym(v):  # Gym's own verifiers judge
        return
    try:
        of_name = make_judges(v)
    except UserError as problem:
        yield error(str(problem).partition("=")[0].partition(":")[0], str(problem))
        return
    first: dict[str, Any] = {}
    for split in ("train", "validation"):
        for number, part in enumerate(list_parts(v, split)):
            name = str(part.get("env_name") or v.get("data.default.env_name"))
            if (judge := of_name.get(name)) is None:
                continue
            listed = isinstance(v.get(f"data.{split}"), list)
            key = f"data.{split}" + (f".{number}" if listed else "") + ".data_path"
            for line, raw in _read_raw(part):
                first.setdefault(name, raw)
                if (why := _explain_refusal(judge, raw)) is not None:
                    yield error(key, f"{part['data_path']}, line {line}: its reference {why}; {ADVICE}")
                    break
            else:
                for sentence in describe_kinds(judge.audit(islice(_read_raw(part), AUDITED))):
                    yield warning(key, f"{part['data_path']}: {sentence}; of the first {AUDITED} lines")
    for name, raw in first.items():  # without a local set, the first reference is not known yet
        try:
            of_name[name].try_on(raw)
        except UserError as problem:
            yield error(f"env.{name}.reward", str(problem))


def _explain_refusal(judge: Judge, raw: Any) -> str | None:
    try:
        judge.read(raw)
    except ValueError as problem:
        return str(problem)
    return None


def _read_raw(part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield line and reference of a local data set, as NeMo-RL's ResponseDataset hands it to the environment.

    Nothing where the file or its column cannot be read, which other rules say.
    """
    path = part.get("data_path")
    if path is None or not lies_here(Path(str(path))):
        return
    column = str(part.get("output_key") or "output")
    try:
        for line, record in read_records(Path(str(path)), lambda _line, _why: None, str(part.get("split") or "train")):
            if line > MAX_LINES:
                return
            messages = record.get("messages")
            if isinstance(messages, list) and len(messages) > 1 and isinstance(messages[1], Mapping):
                yield line, messages[1].get("content")
            elif column in record:
                yield line, record[column]
    except UserError:
        return
