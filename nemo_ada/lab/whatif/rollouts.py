"""The responses of a log, and their labels. Axes: N responses, G groups.

A group is what one training step drew for one prompt. Where a log has no steps, a file takes the place of a step. Two
folders are two runs, so equal steps in them are not the same step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_ada.core.arrays import BoolArray, IntArray
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.names import FIELDS, MISSING, find_field, list_names, propose_column
from nemo_ada.lab.whatif.reading import NEMO_RL, STEP_IN_PATH, open_log
from nemo_ada.run.json_lines import Record

if TYPE_CHECKING:
    import pandas as pd

SHARE_WITH_DEPTH = 0.9  # of the groups that have at least as many responses as the depth
NAN = math.nan

RESPONSE = ("prompt", "reward", "right", "tokens", "step", "number", "text")
"""Columns of a response. `prompt` is equal for equal prompts, and `text` for equal answers, 0 where the log has none.
`number` is the id of the group within its step."""
BATCH = ["prompt", "reward", "tokens"]

Response = tuple[int, float, float, float, float, str, int]


class NoRewardError(ValueError):
    """A record has no field that is known as the reward."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The responses of some logs.

    Attributes:
        frame: A row per response, in the order of the log. `group`, `prompt` and `step` are numbers from 0. `reward` is
            NaN without a label, `right` is 0 or 1 where the log says so beside the reward, `tokens` may be NaN, and
            `text` is equal for equal answers and 0 where the log has none.
        notes: What a reader must know about the logs.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()

    def correct_N(self, threshold: float) -> BoolArray:
        """Return which responses count as correct: what the log says, else those with a reward above the threshold."""
        right_N = self.frame["right"].to_numpy(np.float64)
        return np.where(np.isnan(right_N), self.frame["reward"].to_numpy(np.float64) > threshold, right_N == 1.0)


def read_rollouts(files: Sequence[tuple[int, Path]], columns: Mapping[str, str]) -> Rollouts:
    """Read the responses of files.

    Args:
        files: The number of the log, and the file.
        columns: What a response needs (`names.FIELDS`) -> the user's field for it.

    Raises:
        UserError: A file cannot be read, or a record of it is no rollout. The message names file and line.
    """
    import pandas as pd

    names = _merge_names(columns)
    notes, frames, last = dict[str, None](), list[pd.DataFrame](), pd.DataFrame()
    for number, (log, file) in enumerate(files):
        frame = pd.DataFrame(_read_responses(file, names, notes), columns=list(RESPONSE))
        if file.suffix == ".parquet" and frame[BATCH].equals(last):  # TRL logs more often than it draws
            notes[f"{file} repeats the batch of the file before it, so it was left out"] = None
            continue
        last, in_path = frame[BATCH], STEP_IN_PATH.findall(str(file))
        step_N = frame["step"].fillna(float(in_path[-1]) if in_path else NAN)
        place_N = np.where(step_N.isna(), number, -1)  # what takes the place of a step
        frames.append(frame.assign(log=log, folder=str(file.parent), file=place_N, step=step_N))
    if not sum(map(len, frames)):
        raise UserError(
            f"{', '.join(str(file) for _, file in files)[:200]}: no training rollouts are in it; `nemo-ada whatif "
            "--help` lists what can be read"
        )
    frame = pd.concat(frames, ignore_index=True)
    step = ["log", "folder", "file", "step"]
    group_N = frame.groupby([*step, "prompt", "number"], dropna=False, sort=False).ngroup()
    return Rollouts(
        frame[["reward", "right", "tokens", "text"]].assign(
            group=group_N, prompt=pd.factorize(frame["prompt"])[0], step=frame.groupby(step, dropna=False).ngroup()
        ),
        tuple(notes),
    )


def lacks_reward(file: Path, columns: Mapping[str, str]) -> bool:
    """Return whether the first record of a file is no response, because it has no reward: problems, for example.

    A file that cannot be read is none of these, because its reader says what is wrong with it. Nor are averages.
    """
    if open_log(file, columns)[0]:
        return False
    try:
        next(_read_responses(file, _merge_names(columns), {}), None)
    except UserError as problem:
        return isinstance(problem.__cause__, NoRewardError)
    return False


def _merge_names(columns: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return the names of what a response needs, the user's in place of those that are known."""
    named = {what: (name,) for what, name in columns.items()}
    return {**FIELDS, **({"right": ()} if "reward" in named else {}), **named}  # who names the reward means that one


def _read_responses(file: Path, names: Mapping[str, Sequence[str]], notes: dict[str, None]) -> Iterator[Response]:
    for number, record in open_log(file)[1]:
        try:
            if NEMO_RL in record:
                yield from _read_nemo_rl(record)
            elif isinstance(record.get("task"), dict) and ("traces" in record or "nodes" in record):
                yield from _read_prime_rl(record)
            else:
                yield from (_read_table(one, names, notes) for one in _split_group(record, names))
        except (ValueError, TypeError, RecursionError) as problem:
            raise UserError(f"{file}, line {number}: {problem}") from problem


def _read_nemo_rl(record: Record) -> Iterator[Response]:
    """Read a line of NeMo-RL's train_data_step*.jsonl. Each value is a list with an entry per response.

    The prompt is what stands before the first generated token.
    """
    columns = [record.get(name) for name in ("rewards", "token_ids", NEMO_RL, "sample_loss_mask")]
    for reward, ids, mask, used in zip(*columns, strict=True):
        generated = [i for i, (_, value) in enumerate(zip(ids, mask, strict=True)) if value]
        # Only a placeholder has no answer. A whole response outside the loss, such as one that was cut off, was judged.
        label = NAN if used == 0 and len(generated) <= 1 else _number("rewards", reward)
        prompt = ids[: generated[0]] if generated else ids
        answer = [ids[i] for i in generated]
        yield _make_key(prompt), label, NAN, float(len(generated)), NAN, "", _make_key(answer)


def _read_prime_rl(record: Record) -> Iterator[Response]:
    """Read an episode of prime-rl's traces.jsonl. Episodes of an evaluation have no responses here."""
    run, task = _get_object(record, "run"), _get_object(record, "task")
    work = _get_object(run, "work")
    if "eval" in (run.get("type"), work.get("type")):
        return
    prompt = [_get_object(record, "env").get("id"), task.get("key") or task.get("hash") or task.get("data")]
    step, group = _number("step", work.get("step"), 0.0), str(_get_object(record, "group").get("id", ""))
    traces = [record] if "nodes" in record else record.get("traces") or []
    trained = [trace for trace in traces if _get_object(trace, "agent").get("trainable", True)]
    for trace in trained or [{}]:  # an episode that failed has no trace, and so no label
        rewards = _get_object(trace, "rewards").values()
        parts = [
            _number("score", part.get("score")) * _number("weight", part.get("weight", 1.0))
            for part in rewards if isinstance(part, dict)
        ]  # fmt: skip
        counts = [
            _number("tokens", _get_object(call, "usage").get("completion_tokens")) for call in trace.get("calls") or []
        ]
        tokens = math.fsum(counts) if counts else NAN
        yield _make_key(prompt), math.fsum(parts) if parts else NAN, NAN, tokens, step, group, 0


def _get_object(record: Any, key: str) -> Record:
    """Return the object under a key. It is empty where there is none."""
    value = record.get(key) if isinstance(record, dict) else None
    return value if isinstance(value, dict) else {}


def _split_group(record: Record, names: Mapping[str, Sequence[str]]) -> Iterator[Record]:
    """Yield the responses of a record. One of a whole group has lists, such as `responses` and `scores`."""
    rewards = find_field(record, names["reward"])
    if rewards is MISSING and (parts := _list_of_responses(record, names["reward"])) is not None:
        yield from ({**record, **part} for part in parts)
        return
    if isinstance(rewards, str) and rewards.lstrip().startswith("["):  # a cell of a table
        record = {name: _list_in_text(value) for name, value in record.items()}
        rewards = find_field(record, names["reward"])
    if not isinstance(rewards, list):
        yield record
        return
    size, prompts = len(rewards), {name.partition(".")[0] for name in names["prompt"]}
    if not size or any(isinstance(one, list) for one in rewards):
        raise ValueError(f"its reward is {str(rewards)[:40]!r}, not a number and no list of numbers")
    lists = {
        name for name, value in record.items()
        if isinstance(value, list) and len(value) == size and (value is rewards or name not in prompts)
    }  # fmt: skip
    for i in range(size):
        yield {name: value[i] if name in lists else value for name, value in record.items()}


def _list_of_responses(record: Record, rewards: Sequence[str]) -> list[Record] | None:
    """Return the responses that a record of a group has as a list of objects with a reward each. None without one."""
    lists = (value for value in record.values() if isinstance(value, list) and value)
    return next(
        (
            parts
            for parts in lists
            if all(isinstance(part, dict) and find_field(part, rewards) is not MISSING for part in parts)
        ),
        None,
    )


def _list_in_text(value: Any) -> Any:
    """Return the list that a text is in JSON, else the value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _read_table(record: Record, names: Mapping[str, Sequence[str]], notes: dict[str, None]) -> Response:
    """Read a record with a field for the prompt and one for the reward."""
    value = {what: find_field(record, known) for what, known in names.items()}
    if isinstance(value["reward"], dict):  # slime's reward function may return several values
        value["reward"] = find_field(value["reward"], (*FIELDS["reward"], *FIELDS["right"]))
    if value["reward"] is MISSING and value["prompt"] is not MISSING and "advantage" in record:
        value["reward"] = _sum_of_rewards(record, notes)
    for what in ("prompt", "reward"):
        if value[what] is MISSING:
            able = [name for name, held in record.items() if what == "prompt" or not isinstance(held, str | dict)]
            raise (NoRewardError if what == "reward" else ValueError)(
                f"has no {what}: none of the fields {', '.join(names[what])}; name yours with "
                f"{propose_column(what, able, 'FIELD')} (it has {list_names(list(record))})"
            )
    tokens, right, text = value["tokens"], value["right"], value["text"]
    return (
        _make_key(value["prompt"]), _number("reward", value["reward"]), float(right) if right in (0, 1) else NAN,
        float(len(tokens)) if isinstance(tokens, list) else _number("tokens", tokens, 0.0, 1e9),
        _number("step", value["step"], 0.0), str(value["group"]),
        0 if text in (MISSING, None, "", []) else _make_key(text),
    )  # fmt: skip


def _sum_of_rewards(record: Record, notes: dict[str, None]) -> float:
    """Return the sum of TRL's reward functions, whose names are the columns with numbers."""
    there = {
        name: float(value) for name, value in record.items()
        if name not in ("step", "advantage") and type(value) in (int, float) and math.isfinite(value)
    }  # fmt: skip
    if len(there) > 1:
        notes[f"the reward is {' + '.join(there)}; --column reward=NAME takes another"] = None
    return math.fsum(there.values()) if there else NAN


def _make_key(prompt: Any) -> int:
    if prompt is None:
        raise ValueError("its prompt is null")
    return hash(json.dumps(prompt, sort_keys=True, default=str))


def _number(name: str, value: Any, least: float = -1e15, most: float = 1e15) -> float:
    """Return a number or a truth value. Null, NaN and a missing field give NaN."""
    if value is None or value is MISSING:
        return NAN
    if not isinstance(value, int | float) or value < least or value > most:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number from {least:g} to {most:g}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of groups.

    Attributes:
        pos_G: Correct responses.
        total_G: Responses with a label.
        prompt_G: Prompt of the group. Groups of one prompt are not independent.
        depth: A number of responses that nearly all groups have.
        first_pos_G: Correct ones among the first `depth` responses.
    """

    pos_G: IntArray
    total_G: IntArray
    prompt_G: IntArray
    depth: int
    first_pos_G: IntArray


def count_labels(log: Rollouts, threshold: float, first: int | None = None) -> Labels:
    """Count the labels of each group.

    Args:
        log: The responses. Those without a reward have no label.
        threshold: A response is correct when its reward is above this.
        first: Use only so many responses of each group, in the order of the log. None uses all.

    Raises:
        UserError: Most groups have fewer than two responses.
    """
    frame = log.frame.assign(correct=log.correct_N(threshold))[log.frame["reward"].notna()]
    if not len(frame):
        raise UserError("no response of the logs has a reward")
    place_N = frame.groupby("group").cumcount()
    frame, place_N = (frame, place_N) if first is None else (frame[place_N < first], place_N[place_N < first])
    groups = frame.groupby("group")
    total_G = groups.size().to_numpy()
    depth = int(np.quantile(total_G, 1.0 - SHARE_WITH_DEPTH, method="lower"))
    if depth < 2:
        raise UserError(
            f"{np.mean(total_G < 2):.0%} of the {len(total_G):,} groups have one response; pass rates need at least "
            "two responses per prompt (is the prompt the right field? name it with --column prompt=FIELD)"
        )
    first_pos_G = (frame["correct"] & (place_N < depth)).groupby(frame["group"]).sum().to_numpy()
    pos_G, prompt_G = groups["correct"].sum().to_numpy(), groups["prompt"].first().to_numpy()
    return Labels(pos_G, total_G, prompt_G, depth, first_pos_G)
