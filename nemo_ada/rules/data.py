"""Rules for data sets: their columns, their prompt files, and room for the answers of a thinking model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada.config.paths import PROMPT_FILES
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.hub import LOCAL
from nemo_ada.rules.finding import Findings, error, ok, skipped, warning
from nemo_ada.rules.gym import COLUMNS, PREPARE, uses_gym
from nemo_ada.rules.rewards import OUR_CLASS, OUR_ENVIRONMENT
from nemo_ada.run.data_files import is_lines_or_objects, read_records
from nemo_ada.run.json_lines import DamagedLine, refuse_line
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS, pair_of
from nemo_ada.tasks.media import refuse_media

MEDIA_PROCESSOR = "vlm_hf_data_processor"
LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
MESSAGES, MOST_LOADED = "messages", 100_000
EXAMPLE = '{"problem": "1 + 1?", "gt": "2"}'
THINKING, THINKING_TOKENS = "policy.tokenizer.chat_template_kwargs.enable_thinking", 16384
PUBLISHED = {  # columns of the authors' sets
    f"RLHFlow/{name}": ("problem", "gt")
    for name in (
        "reinforce_ada_simple_prompt_1-5b", "reinforce_ada_hard_prompt_1-5b", "reinforce_ada_easy_prompt",
        "reinforce_ada_hard_prompt", "reinforce_ada_hard_prompt_llama",
    )
}  # fmt: skip


def check_datasets(values: Values) -> Findings:
    """Training and validation set, the metric that ranks checkpoints, and room for a thinking model's answers."""
    validates = values.validates
    yield from check_dataset(values, "train")
    sets = [part.get(key) for part in list_parts(values, "validation") for key in ("data_path", "dataset_name")]
    split_off = any(part.get("split_validation_size", 0) for part in list_parts(values, "train"))
    if validates and not any(sets) and not split_off:
        yield error("data.validation", "the run validates and names no set; dataset_name: AIME2024 would work")
    elif validates:
        yield from check_dataset(values, "validation")
    metric = str(values.get("checkpointing.metric_name", ""))
    if metric.startswith("val") and not validates and values.get("checkpointing.enabled", False):
        yield warning(
            "checkpointing.metric_name",
            f"{metric} needs validations, and there are none: NeMo-RL then keeps the newest checkpoints; set "
            "grpo.val_period, or metric_name to null, which says so",
        )
    model, tokens = str(values.get("policy.model_name", "")), values.number("policy.generation.max_new_tokens") or 0
    thinks = "Qwen3" in model and not model.endswith(("Instruct-2507", "-Base"))
    if thinks and values.get(THINKING, True) and tokens < THINKING_TOKENS:
        yield warning(
            THINKING,
            f"{model} thinks, and {tokens:g} tokens cut most of its answers; set it to false, or max_new_tokens to "
            f"{THINKING_TOKENS} or more",
        )


def list_parts(values: Values, split: str) -> list[Mapping[str, Any]]:
    """Return the data sets of a split. NeMo-RL takes one section or a list of them."""
    section = values.get(f"data.{split}")
    return [part for part in (section if isinstance(section, list) else [section]) if isinstance(part, Mapping)]


def lies_here(path: Path) -> bool:
    """Return whether a data set is a file, a folder or a pattern of files on this machine."""
    return path.is_file() or path.is_dir() or ("*" in path.name and path.parent.is_dir())


def uses_media(values: Values) -> bool:
    """Return whether the prompts have images or audio. NeMo-RL has a script of its own for them (run_vlm_grpo.py)."""
    return any(values.get(f"data.{split}.processor") == MEDIA_PROCESSOR for split in ("default", "train"))


def check_dataset(values: Values, split: str = "train") -> Findings:
    """Each set, a local file or a published one, has the columns of its `input_key` and `output_key`, or NeMo-Gym's."""
    for number, part in enumerate(list_parts(values, split) or [{}]):
        listed = isinstance(values.get(f"data.{split}"), list)
        yield from _check_part(values, part, f"data.{split}" + (f".{number}" if listed else ""))


def _check_part(values: Values, part: Mapping[str, Any], here: str) -> Findings:
    path = part.get("data_path")
    if path is None:
        yield skipped(here, f"{part.get('dataset_name') or 'no data set'}: read by NeMo-RL's own loader")
        return
    wanted = {
        f"{here}.{key}": str(part.get(key) or default)
        for key, default in (("input_key", "input"), ("output_key", "output"))
    }
    if uses_gym(values):
        wanted = {f"{here}.data_path#{column}": column for column in COLUMNS}
    local = Path(str(path))
    first: Mapping[str, Any] = {}
    if (form := _describe_form(local)) is not None:
        yield error(
            f"{here}.data_path",
            f"{path}{form}; `nemo-ada data prepare {path} --out DIR` makes DIR/dataset.jsonl with input_key=problem "
            "and output_key=answer",
        )
        return
    if lies_here(local) or local.suffix in (".json", ".jsonl"):
        try:
            first = _read_first_record(local, str(part.get("split") or "train"))
            columns = tuple(first)
        except UserError as problem:
            yield error(f"{here}.data_path", f"{problem}; {PREPARE}" if uses_gym(values) else str(problem))
            return
    elif str(path) in PUBLISHED:
        columns = PUBLISHED[str(path)]
    elif local.suffix and not local.exists() and (local.is_absolute() or local.suffix in LOCAL):
        yield error(f"{here}.data_path", f"{path} is not there; name a file or a data set of the hub")
        return
    else:
        yield skipped(f"{here}.data_path", f"{path} is neither a local file nor a set whose columns are known here")
        return
    if first and not uses_gym(values) and not uses_media(values):
        try:  # NeMo-RL keeps the two columns and drops the others without a word
            refuse_media(first, str(first.get(wanted[f"{here}.input_key"])))
        except ValueError as reason:
            yield error(
                f"{here}.data_path",
                f"{path}, record 1: {reason}; take a set of text, or NeMo-RL's run_vlm_grpo.py with "
                f"data.default.processor={MEDIA_PROCESSOR}",
            )
            return
    missing = {key: name for key, name in wanted.items() if name not in columns}
    if MESSAGES in columns and not missing and not uses_gym(values):
        yield error(
            f"{here}.data_path",
            f"{path} has a column {MESSAGES!r}, so NeMo-RL's ResponseDataset takes prompt and reference from its turns "
            f"and reads {' and '.join(map(repr, wanted.values()))} not at all; leave that column out",
        )
        return
    # Our judge gets a reference as it is, and another rule asks it. Other environments want text.
    texts = [name for key, name in wanted.items() if not (key.endswith("output_key") and _is_ours(values, part))]
    nested = [] if uses_gym(values) else [n for n in texts if isinstance(first.get(n), (list, dict))]
    layout = _describe_layout(first) if nested or (missing and not uses_gym(values)) else ""
    if layout and (nested or "(messages)" in layout or "." in layout):
        yield error(
            f"{here}.data_path",
            f"{path} has the layout {layout}, and NeMo-RL's ResponseDataset reads columns of text; "
            f"`nemo-ada data prepare {path} --out DIR` makes DIR/dataset.jsonl with input_key=problem and "
            "output_key=answer",
        )
        return
    for name in nested:
        yield error(f"{here}.data_path", f"{path}: column {name!r} holds {type(first[name]).__name__}, not text")
    for key, name in missing.items():
        advice = f"; {PREPARE}" if uses_gym(values) else ""
        yield error(
            key.partition("#")[0], f"{path} has no column {name!r}; its columns are {', '.join(columns)}{advice}"
        )
    if not missing and not nested:
        yield ok(f"{here}.data_path", f"{path}: columns {', '.join(wanted.values())}")


def _describe_form(local: Path) -> str | None:
    """Return why NeMo-RL cannot read a file of this form. None where it can, and for a file that is not here."""
    if lies_here(local) and not local.is_dir() and local.suffix not in LOADERS:
        return f": NeMo-RL reads {', '.join(LOADERS)}, and folders of such files"
    if local.is_file() and local.suffix == ".json" and not is_lines_or_objects(local):
        return " is a table in JSON, and NeMo-RL reads an object per line or an array of objects"
    return None


def _is_ours(values: Values, part: Mapping[str, Any]) -> bool:
    name = part.get("env_name") or values.get("data.default.env_name")
    return name == OUR_ENVIRONMENT or values.get(f"env.{name}.class") == OUR_CLASS


def _describe_layout(record: Mapping[str, Any]) -> str:
    """Return where a record has its prompt and its reference, in words. Empty where neither was found."""
    try:
        return pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).layout
    except ValueError:
        return ""


def _read_first_record(path: Path, split: str) -> Mapping[str, Any]:
    """Return the first record. Raises UserError where there is none."""
    try:
        first = next(read_records(path, refuse_line, split), None)
    except DamagedLine:
        raise UserError(f"{path} does not begin with a JSON object; write one per line, such as {EXAMPLE}") from None
    except UserError as problem:
        advice = "" if path.is_dir() else "; name a .jsonl, .json or .parquet file that exists"
        raise UserError(f"{problem}{advice}") from None
    if first is None:
        raise UserError(f"{path} is empty; write one JSON object per line, such as {EXAMPLE}")
    return first[1]


def check_loading(values: Values) -> Findings:
    """The library with which NeMo-RL loads a local file reads there what the file says.

    It guesses types. An ISO date becomes a time, with which the job ends; of a CSV `NA` becomes no reference, and `007`
    a 7. Where the library is missing, the job asks it before anything starts.
    """
    if find_spec("datasets") is None or uses_gym(values) or uses_media(values):
        return
    for split in ("train", "validation") if values.validates else ("train",):
        for number, part in enumerate(list_parts(values, split)):
            path = Path(str(part.get("data_path")))
            if path.suffix in LOADERS and path.is_file():
                listed = isinstance(values.get(f"data.{split}"), list)
                yield from _check_loaded(part, path, f"data.{split}" + (f".{number}" if listed else ""))


def _check_loaded(part: Mapping[str, Any], path: Path, here: str) -> Findings:
    names = [str(part.get(key) or default) for key, default in (("input_key", "input"), ("output_key", "output"))]
    try:
        written = list(islice(read_records(path, refuse_line), MOST_LOADED))
    except (DamagedLine, UserError):  # another rule says it
        return
    first = written[0][1] if written else {}
    if MESSAGES in first or not set(names) <= set(first) or (path.suffix == ".json" and not is_lines_or_objects(path)):
        return
    instead = "Parquet keeps texts as they are (pandas.DataFrame.to_parquet)"
    loaded = islice(_load_pairs(path, str(part.get("split") or "train"), names), len(written))
    changed = ""
    try:
        for (line, record), pair in zip(written, loaded, strict=True):
            for name, value in zip(names, pair, strict=True):
                place = f"{path}, line {line}: NeMo-RL's loader (datasets) reads {name!r} as"
                if not isinstance(value, str | int | float | list | dict):
                    yield error(f"{here}.data_path", f"{place} {value!r}, and the file has {record[name]!r}; {instead}")
                    return
                if not isinstance(value, list | dict) and value != record[name] and str(value) != str(record[name]):
                    changed = changed or f"{place} {value!r}, and the file has {record[name]!r}; {instead}"
    except Exception as problem:  # noqa: BLE001 - the library's and pyarrow's errors have no common base class
        cause = " ".join(str(problem.__cause__ or problem).split())[:200]
        prepare = f"`nemo-ada data prepare {path} --out DIR` makes DIR/dataset.jsonl"
        yield error(f"{here}.data_path", f"{path}: NeMo-RL's loader (datasets) cannot read it: {cause}; {prepare}")
        return
    if changed:
        yield warning(f"{here}.data_path", changed)


def _load_pairs(path: Path, split: str, names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the values of these columns as NeMo-RL's load_dataset_from_path reads a file."""
    import datasets  # takes a second

    sets = datasets.load_dataset(LOADERS[path.suffix], data_files=str(path), streaming=True)
    if split not in sets:
        raise ValueError(f"a file has the split 'train' only, and split is {split!r}; leave split out")
    for record in sets[split]:
        yield [record[name] for name in names]


def check_prompt_files(values: Values) -> Findings:
    """Prompt files exist in the working folder, or beside or above a YAML that the config builds on."""
    for section in ("default", "train", "validation"):
        for key in (f"data.{section}.{name}" for name in PROMPT_FILES):
            named = values.get(key)
            if named is not None and not Path(str(named)).is_file():
                yield error(key, f"{named} is neither in the working folder nor near the config; give an absolute path")
