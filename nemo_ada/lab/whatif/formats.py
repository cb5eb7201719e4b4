"""The records that reinforcement-learning frameworks write about rollouts, as responses with a reward.

Five forms are known. Their fields were read in the sources of the frameworks on 25 November 2026.

- NeMo-RL's train_data_step*.jsonl: every value is a list with one entry, and the tokens have a loss mask.
- NeMo-Gym's rollouts: `response` is what the engine answered, with its `usage`.
- prime-rl's traces.jsonl: an episode or a trace of the package verifiers.
- TRL's completions_*.parquet: a column for each reward function.
- Any record with a prompt and a reward: verl's dumps, open-instruct's traces, responses of `nemo-ada eval`, own files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemo_ada.run.json_lines import Record

LETTERS_PER_TOKEN = 4.0  # usual for English text; only for logs that have text and no count of tokens
SHOWN = 80  # letters of a prompt that are kept as its name
NAN = math.nan

NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt_id", "prompt_tokens", "prompt", "input", "problem", "question", "example_id", "id"),
    "reward": ("reward", "score", "total_reward", "correct", "is_correct", "rewards", "scores"),
    "right": ("acc",),  # of verl's reward managers, such as DAPO's, whose score has a penalty for length
    "tokens": (
        "tokens", "response_tokens", "completion_tokens", "output_tokens", "num_tokens", "response_length",
        "token_usage.output_tokens", "response_lengths", "completion_lengths",
    ),
    "step": ("step", "training_step", "global_step"),
    "group": ("prompt_idx", "group_id"),
    "text": ("completion", "response", "output", "text", "completions", "responses", "outputs"),
}  # fmt: skip
"""What a response needs -> the fields that may have it, the first one that is there counts. Dots lead into objects."""

_MISSING = object()


class UnreadableRecord(ValueError):
    """A record that is no rollout. The text is the reason."""


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """One response of a log.

    Attributes:
        prompt: Digest of what identifies the prompt.
        name: The beginning of the prompt, or its id, for people.
        reward: The reward. It is NaN without a label.
        right: Whether the answer is right, 0 or 1, where the log says so beside the reward. Else NaN.
        tokens: Generated tokens. NaN where the log does not say.
        step: Training step. None where the record does not say.
        group: Number or id of the group within its step. Empty where the record does not say.
        key: Id of the response, by which a second copy is left out. Empty where there is none.
        counted: Whether `tokens` were counted. Otherwise they come from the length of the text.
    """

    prompt: bytes
    name: str
    reward: float
    tokens: float = NAN
    step: int | None = None
    group: str = ""
    key: str = ""
    counted: bool = True
    right: float = NAN

    def at(self, step: int | None) -> LoggedResponse:
        """Return the response with the step that the file's name gives."""
        return self if step is None else replace(self, step=step)


Reader = Callable[[Record], Iterator[LoggedResponse]]


def reader_for(record: Record, columns: Mapping[str, str]) -> tuple[str, Reader]:
    """Choose the reader of a file by its first record.

    Args:
        record: The first record.
        columns: What a response needs -> the user's field for it. The other fields keep their usual names.

    Returns:
        The name of the form, and its reader.
    """
    named = {field: (name,) for field, name in columns.items()}
    names = {**NAMES, **({"right": ()} if "reward" in named else {}), **named}  # who names the reward means that one
    if not columns:
        if "token_loss_mask" in record and "rewards" in record:
            return "NeMo-RL", read_nemo_rl
        if isinstance(record.get("response"), dict) and "reward" in record and "responses_create_params" in record:
            return "NeMo-Gym", read_gym
        if isinstance(record.get("task"), dict) and ("traces" in record or "nodes" in record or "errors" in record):
            return "prime-rl", read_episode
    if "reward" not in columns and "advantage" in record and "completion" in record and "reward" not in record:
        rewards = [key for key, value in record.items() if key not in ("step", "advantage") and _numeric(value)]
        if not rewards:
            raise UnreadableRecord("has a completion and no column with numbers that could be a reward")
        return f"TRL (reward: {' + '.join(rewards)})", lambda row: read_table(row, names, rewards)
    return "records", lambda row: read_table(row, names)


def read_nemo_rl(record: Record) -> Iterator[LoggedResponse]:
    """Read a line of NeMo-RL's train_data_step*.jsonl: a row, or the rows of a group.

    The prompt is what stands before the first generated token.
    """
    rewards = record.get("rewards")
    if isinstance(rewards, list) and len(rewards) > 1:
        for row in _rows_of(record, len(rewards)):
            yield from read_nemo_rl(
                {name: [value] if _is_row(record, name, rewards) else value for name, value in row.items()}
            )
        return
    ids, mask = _list(record, "token_ids"), _list(record, "token_loss_mask")
    if len(ids) != len(mask):
        raise UnreadableRecord(f"token_ids has {len(ids)} entries and token_loss_mask {len(mask)}")
    generated = [i for i, value in enumerate(mask) if value]
    prompt = ids[: generated[0]] if generated else ids
    masked = record.get("sample_loss_mask") in ([0.0], [0]) and len(generated) <= 1
    reward = NAN if masked else _number("rewards", _only(record, "rewards"))
    yield LoggedResponse(digest(prompt), _shown(_content(record) or prompt), reward, float(len(generated)))


def read_gym(record: Record) -> Iterator[LoggedResponse]:
    """Read a rollout of NeMo-Gym."""
    params, task = record["responses_create_params"], record.get("_ng_task_index")
    prompt = params.get("input") if isinstance(params, dict) else params
    usage = record["response"].get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    yield LoggedResponse(
        digest(prompt if task is None else [task, prompt]),
        _shown(prompt),
        _number("reward", record["reward"]),
        _count("response.usage.output_tokens", tokens),
    )


def read_episode(record: Record) -> Iterator[LoggedResponse]:
    """Read an episode of prime-rl, or a trace of verifiers. An episode of an evaluation has no responses here."""
    run, task = _object(record, "run"), _object(record, "task")
    work = _object(run, "work")
    if "eval" in (run.get("type"), work.get("type")):
        return
    prompt = [_object(record, "env").get("id"), task.get("key") or task.get("hash") or task.get("data")]
    step = None if work.get("step") is None else _step("run.work.step", work["step"])
    group = str(_object(record, "group").get("id", ""))
    name = _shown(task.get("key") or task.get("data"))
    traces = record.get("traces", []) if "nodes" not in record else [record]
    if not isinstance(traces, list) or any(not isinstance(trace, dict) for trace in traces):
        raise UnreadableRecord("traces is no list of objects")
    trained = [trace for trace in traces if _object(trace, "agent").get("trainable", True)]
    if not trained:
        yield LoggedResponse(digest(prompt), name, NAN, step=step, group=group, key=str(record.get("id", "")))
    for trace in trained:
        calls = trace.get("calls") or []
        usages = [_object(call, "usage") for call in calls if isinstance(call, dict)]
        counts = [_count("usage.completion_tokens", usage.get("completion_tokens")) for usage in usages]
        tokens = math.fsum(counts) if counts else NAN
        yield LoggedResponse(digest(prompt), name, _trace_reward(trace), tokens, step, group, str(trace.get("id", "")))


def _is_row(record: Record, name: str, rewards: list[Any]) -> bool:
    value = record[name]
    return isinstance(value, list) and len(value) == len(rewards)


def _rows_of(record: Record, count: int) -> Iterator[Record]:
    """Yield the responses of a group: each list of as many values gives one to each."""
    for i in range(count):
        yield {
            name: value[i] if isinstance(value, list) and len(value) == count else value
            for name, value in record.items()
        }


def _trace_reward(trace: Record) -> float:
    """Return the weighted sum of a trace's rewards. NaN where none was computed."""
    parts = [part for part in _object(trace, "rewards").values() if part is not None]
    if any(not isinstance(part, dict) for part in parts):
        raise UnreadableRecord("rewards holds something else than objects with score and weight")
    values = [_number("score", part.get("score")) * _number("weight", part.get("weight", 1.0)) for part in parts]
    return math.fsum(values) if values else NAN


def read_table(
    record: Record, names: Mapping[str, Sequence[str]] = NAMES, rewards: Sequence[str] = ()
) -> Iterator[LoggedResponse]:
    """Read a record with a field for the prompt and one for the reward.

    Args:
        record: The record.
        names: What a response needs -> fields that may have it.
        rewards: Columns whose sum is the reward. Without any, `names` has the reward.
    """
    prompt = _find(record, names["prompt"], "prompt")
    if prompt is None:
        raise UnreadableRecord("its prompt is null")
    if rewards:
        values = [_number(name, record.get(name)) for name in rewards]
        there = [value for value in values if math.isfinite(value)]
        reward = math.fsum(there) if there else NAN
    else:
        given = _find(record, names["reward"], "reward")
        if isinstance(given, list):  # a group: the prompt, and lists of rewards, texts and tokens
            if not given or any(isinstance(one, list) for one in given):
                raise UnreadableRecord(f"reward is {str(given)[:40]!r}, not a number and no list of numbers")
            keep = {name: record[name] for name in names["prompt"] if name in record}
            for row in _rows_of(record, len(given)):
                yield from read_table({**row, **keep}, names)
            return
        reward = _number("reward", given)
    tokens, counted = _find(record, names["tokens"], None), True
    if tokens is None:
        text, counted = _find(record, names["text"], None), False
        tokens = None if text is None else max(1, round(len(text_of(text)) / LETTERS_PER_TOKEN))
    step, group, right = (_find(record, names[field], None) for field in ("step", "group", "right"))
    yield LoggedResponse(
        digest(prompt),
        _shown(prompt),
        reward,
        _count("tokens", tokens),
        None if step is None else _step("step", step),
        "" if group is None else str(group)[:SHOWN],
        counted=counted,
        right=float(right) if right in (0, 1) else NAN,
    )


def text_of(value: Any) -> str:
    """Return the text of a response: a string, or the contents of chat messages one after the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(part) for part in value)
    return text_of(value.get("content") or "") if isinstance(value, dict) else ""


def digest(value: Any) -> bytes:
    """Sixteen bytes that are equal for equal values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()


def _find(record: Record, names: Sequence[str], needed: str | None) -> Any:
    """Return the value of the first field that is there. None without one, or UnreadableRecord where it is needed."""
    for name in names:
        value: Any = record
        for part in [name] if name in record else name.split("."):
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            return value
    if needed is None:
        return None
    raise UnreadableRecord(
        f"has no {needed}: none of the fields {', '.join(names)}; name yours with --column {needed}=FIELD (it has "
        f"{', '.join(sorted(str(key)[:40] for key in record)[:12]) or 'no fields'})"
    )


def _object(record: Any, key: str) -> Record:
    """Return the object under a key. It is empty where there is none."""
    value = record.get(key) if isinstance(record, dict) else None
    return value if isinstance(value, dict) else {}


def _only(record: Record, key: str) -> Any:
    """Return the single entry of a list."""
    value = record.get(key)
    if not isinstance(value, list) or len(value) != 1:
        raise UnreadableRecord(f"{key} is no list with one entry, as NeMo-RL writes it")
    return value[0]


def _list(record: Record, key: str) -> list[Any]:
    value = _only(record, key)
    if not isinstance(value, list):
        raise UnreadableRecord(f"{key} holds no list")
    return value


def _content(record: Record) -> Any:
    """Return the first message of NeMo-RL's record, as text. None where there is no text."""
    try:
        return _only(record, "content")[0]
    except (UnreadableRecord, TypeError, LookupError):
        return None


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: Any) -> float:
    """Return a number or a truth value. Null and NaN give NaN."""
    if value is None:
        return NAN
    if not isinstance(value, int | float):
        raise UnreadableRecord(f"{name} is {str(value)[:40]!r}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise UnreadableRecord(f"{name} is a number with hundreds of digits") from None
    if math.isinf(number):
        raise UnreadableRecord(f"{name} is infinite")
    return number


def _count(name: str, value: Any) -> float:
    """Return a number of tokens, or the length of a list of tokens."""
    number = float(len(value)) if isinstance(value, list) else _number(name, value)
    if number < 0 or number > 1e9:
        raise UnreadableRecord(f"{name} is {number:g}, which no response can have")
    return number


def _step(name: str, value: Any) -> int:
    number = _number(name, value)
    if not 0 <= number <= 2**53 or number != int(number):
        raise UnreadableRecord(f"{name} is {str(value)[:40]!r}, not the number of a step")
    return int(number)


def _shown(prompt: Any) -> str:
    """Return the beginning of a prompt on one line."""
    text = text_of(prompt) or str(prompt)
    return " ".join(text[: 4 * SHOWN].split())[:SHOWN]
