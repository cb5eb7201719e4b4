"""The run folder. A run writes it, and a resumed run reads it.

config.yaml        the resolved configuration        environment.json  versions, command; a line per attempt
inputs.json        digests of what it reads: data, tokenizer, template, prompt files, own code
metrics.jsonl      one line per step                 evaluations.jsonl one line per evaluation
tensorboard/       the same as events                checkpoints/step_000050/ complete step folders
status.json, heartbeat, STOP, pace.json               see nemo_ada/run/job_control.py
lock               held while a process runs here     stacks/           of a stalled run
tracking.json      id of the run at W&B, of NeMo-RL
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from nemo_ada import trust
from nemo_ada.errors import UserError
from nemo_ada.run import inputs
from nemo_ada.run.files import (
    MAX_TEXT,
    append,
    join_some,
    json_of,
    list_strangers,
    lock_file,
    read_bounded,
    remove_leftovers,
    text_of,
    verify_folder,
    write_atomically,
)
from nemo_ada.run.json_lines import Record, read_records
from nemo_ada.run.provenance import describe_environment, read_latest
from nemo_ada.run.redaction import hide, hide_in
from nemo_ada.run.yaml_file import read_mapping, read_yaml
from nemo_ada.standing import get_whole_path

log = logging.getLogger(__name__)

STATE = "state.json"  # what every step folder holds
CONTRACT = "prompt_contract.json"  # what the prompts are made of; exports have it, too
PACE = "pace.json"  # in the run's folder, written by job_control.py
# A setting belongs to one of three classes. All others identify a run: a change of them is refused.
VOLATILE = (
    "run_dir",
    "resume",
    "changed_inputs",
    "stall_seconds",
    "checkpointing",
    "logger",
    "base.cache_dir",
    "grpo.max_num_steps",
    "grpo.val_period",
    "reinforce_ada.max_failed_share",
    "reinforce_ada.budget.max_samples",
    "reinforce_ada.budget.max_tokens",
    "reinforce_ada.budget.max_seconds",
    "reinforce_ada.budget.seconds_quantile",
    "policy.generation.vllm_cfg.gpu_memory_utilization",
    "env.ada_math.workers",
)
"""Free settings: a change leaves the numbers of each step as they are."""
LAYOUT = (
    "cluster",
    "policy.train_micro_batch_size",
    "policy.logprob_batch_size",
    "policy.logprob_chunk_size",
    "policy.generation_batch_size",
    "policy.data_parallel_size",
    "policy.threads",
    "policy.sequence_packing",
    "policy.dynamic_batching",
    "policy.make_sequence_length_divisible_by",
    "policy.offload_optimizer_for_logprob",
    *(
        f"policy.megatron_cfg.{name}"
        for name in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
            "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
            "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "activation_checkpointing",
            "defer_fp32_logits", "empty_unused_memory_level", "distributed_data_parallel_config",
            "optimizer.optimizer_cpu_offload", "optimizer.optimizer_offload_fraction",
        )
    ),
    *(
        f"policy.dtensor_cfg.{name}"
        for name in (
            "tensor_parallel_size", "context_parallel_size", "sequence_parallel", "activation_checkpointing",
            "cpu_offload",
        )
    ),
    "policy.generation.colocated",
    "policy.generation.max_num_seqs",
    *(
        f"policy.generation.vllm_cfg.{name}"
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "enforce_eager")
    ),
    "grpo.max_val_samples",
    "grpo.val_batch_size",
    "validation.responses",
    "validation.max_prompts",
)  # fmt: skip
"""Settings of layout and memory. After a change the numbers are the same up to rounding."""
CHANGES = "config_changes.jsonl"
OTHERS = "name another run_dir, or make this one yours alone, for example with chmod -R go-w"
BEFORE_A_RUN = frozenset(
    {
        "STOP", "STOP.ours", "attempts", "attempts.tsv", "checkpoints", "environment.json", "heartbeat", "job",
        "left_out.tsv", "lock", "logs", "over", "pace.json", "stacks", "status.json",
        "tensorboard",
    }
)  # fmt: skip
"""What may be in a folder before its run has a config.yaml: from the batch script, or a killed start."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaf values of a nested mapping under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, name + ".") if isinstance(value, Mapping) else {name: value})
    return flat


def find_changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys whose values differ between two flat mappings."""
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def is_of_class(key: str, settings: Collection[str]) -> bool:
    """Return whether a dotted key is one of these settings or lies below one."""
    return f"{key}.".startswith(tuple(f"{name}." for name in settings))


def get_identity(config: Mapping[str, Any], may_change: Collection[str] = (*VOLATILE, *LAYOUT)) -> dict[str, Any]:
    """Return what identifies a run: all values except secrets and those that may change on resume."""
    kept = {key: value for key, value in flatten(hide_in(config)).items() if not is_of_class(key, may_change)}
    return {key: _normalise_value(key, value) for key, value in kept.items()}


def _normalise_value(key: str, value: Any) -> Any:
    """Return a value of a configuration without what the folder of the user adds: the content of files counts."""
    if not isinstance(value, str) or not value:
        return value
    if inputs.CODE.fullmatch(value):
        place, _, name = value.rpartition(":")
        return f"{Path(place).stem if place.startswith('/') else place.rpartition('.')[2]}:{name}"
    return get_whole_path(value) if inputs.PATH_KEYS.fullmatch(key) else value


def compute_fingerprint(config: Mapping[str, Any]) -> str:
    """Return a hash of `get_identity`."""
    return hashlib.sha256(json.dumps(get_identity(config), sort_keys=True).encode()).hexdigest()[:16]


def find_saves(run: Path, config: Mapping[str, Any]) -> Path:
    """Return the folder where a run saves. NeMo-RL's own files name one outside of the run's, such as results/grpo.

    Args:
        run: the run's folder. It may have another place than when it was written.
        config: the run's configuration.
    """
    values = flatten(config)
    named, before = (values.get(key) for key in ("checkpointing.checkpoint_dir", "run_dir"))
    if named is None:
        return run / "checkpoints"
    folder = get_whole_path(Path(str(named)))
    home = None if before is None else get_whole_path(Path(str(before)))
    return run / folder.relative_to(home) if home is not None and folder.is_relative_to(home) else folder


class RunDir:
    """A folder that belongs to one configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Any = None
        self._lock: IO[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has claimed the folder, and not left it."""
        return self._lock is not None

    def check(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Check that this configuration may use the folder.

        Raises:
            UserError: The folder belongs to another configuration, or it holds a run and `resume` is off, or it holds
                files of somebody else.
        """
        if hide(str(self.path)) != str(self.path):
            raise UserError("run_dir holds a secret, which the folder's name would show to all; name another folder")
        self._refuse_others(config)
        before = self._read_config_before()
        if before is None:
            self._refuse_strangers()
            return
        self._check_same(before, config)
        self.check_inputs(config)
        if not resume:
            raise UserError(
                f"run_dir={self.path} already holds this run; set resume=auto to continue it or name another run_dir"
            )
        self._refuse_lost_checkpoints(config)

    def _refuse_others(self, config: Mapping[str, Any]) -> None:
        """Raise UserError where the folder or its checkpoints are not ours alone: a run would go on from them."""
        for folder, deep in ((self.path, False), (find_saves(self.path, config), True)):
            try:
                if folder.is_dir():
                    trust.check_tree(folder, OTHERS, deep=deep)
            except (OSError, ValueError) as error:
                if isinstance(error, UserError):
                    raise UserError(f"run_dir={self.path}: {error}") from None
                raise UserError(f"run_dir={str(self.path)!r} cannot be read: {error}") from None

    def check_inputs(self, config: Mapping[str, Any], checkpoint: Path | None = None) -> None:
        """Raise UserError where data, tokenizer, template, prompt files or own code are not those of the run.

        Args:
            config: The configuration.
            checkpoint: A step folder. With it the contents are compared with those that its run had read.
        """
        path = (checkpoint or self.path) / inputs.FILE
        flat = flatten(config)
        changed = inputs.find_differences(json_of(path), inputs.compute_digests(flat)) if path.exists() else []
        if not changed:
            return
        if flat.get(inputs.ASKED) is not True:
            raise UserError(
                f"{checkpoint or f'run_dir={self.path}'} has read other contents so far: {'; '.join(changed)} changed; "
                f"restore what was there, name another run_dir, or set {inputs.ASKED}=true to go on with the new ones"
            )
        log.warning("the run goes on with other contents: %s changed", "; ".join(changed))

    def _refuse_lost_checkpoints(self, config: Mapping[str, Any]) -> None:
        """Raise UserError where the run has saved and no checkpoint is here: it would start again from step 0."""
        try:
            saved = int(json_of(self.path / PACE)["saved_step"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError):
            return
        folder = find_saves(self.path, config)
        if saved > 0 and not any(folder.glob("step_*")):
            raise UserError(
                f"run_dir={self.path} has saved step {saved}, but {folder} holds no checkpoint; mount the disk or "
                f"restore the folder, or start again in another run_dir"
            )

    def open(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Claim the folder for this configuration until `close`, and remove half-written files of a killed attempt.

        Raises:
            UserError: `check` refuses the folder, another process uses it, or it cannot be written.
        """
        self.check(config, resume=resume)
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = lock_file(self.path / "lock", f"run_dir={self.path}")
            for folder in (self.path, find_saves(self.path, config)):
                remove_leftovers(folder)
            self._note_changes(config)
            write_atomically(self.path / "config.yaml", yaml.safe_dump(hide_in(config), sort_keys=False))
            self._note_environment()
            self.note_inputs(config)
        except UserError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            self.close()
            raise UserError(f"run_dir={str(self.path)!r} cannot be written: {error}") from None

    def _note_environment(self) -> None:
        """Add this attempt's line to environment.json. Other software than the last attempt's is said, and goes on."""
        path, now = self.path / "environment.json", describe_environment()
        before = read_latest(path) if path.exists() else {}
        other = [key for key in ("nemo_ada", "commit", "python", "packages") if before and before.get(key) != now[key]]
        if other:
            log.warning("the run goes on with other software than its last attempt: %s changed", ", ".join(other))
        open_line = path.exists() and not read_bounded(path, MAX_TEXT).endswith(b"\n")  # bytes: it may be damaged
        append(path, "\n" * open_line + json.dumps(now) + "\n")

    def note_inputs(self, config: Mapping[str, Any]) -> None:
        """Write down what the run reads. A checkpoint gets a copy, because what is edited later counts at a start."""
        write_atomically(self.path / inputs.FILE, json.dumps(inputs.compute_digests(flatten(config)), indent=1))

    def copy_inputs(self, checkpoint: Path) -> None:
        """Write what this attempt has read into a step folder, where both are there."""
        if checkpoint.is_dir() and (self.path / inputs.FILE).exists():
            write_atomically(checkpoint / inputs.FILE, text_of(self.path / inputs.FILE))

    def _read_config_before(self) -> Mapping[str, Any] | None:
        """Return the configuration of the folder, or None where it holds no run."""
        path = self.path / "config.yaml"
        try:
            if not path.exists():
                return None
            content = read_yaml(path, written=True)
        except (OSError, ValueError) as error:  # a name that no file can have, or UserError
            content = str(error)
        if isinstance(content, Mapping):
            return content
        raise UserError(
            f"run_dir={str(self.path)!r} has a config.yaml that cannot be read as a configuration "
            f"({str(content)[:200]}); restore the file or name another run_dir"
        )

    def _refuse_strangers(self) -> None:
        """Raise UserError where the folder holds files that no run wrote: training beside them would mix the two."""
        try:
            strange = list_strangers(self.path, BEFORE_A_RUN)
        except (OSError, ValueError):
            return  # not there yet, or `open` says why it cannot be written
        if strange:
            raise UserError(
                f"run_dir={str(self.path)!r} holds {join_some(strange)} and no run; name a folder that is empty or "
                "does not exist yet"
            )

    def _note_changes(self, config: Mapping[str, Any]) -> None:
        """Append the changed keys of this attempt to CHANGES: {time, changed: {key: [before, after]}}."""
        before = self._read_config_before()
        if before is None:
            return
        old, new = flatten(before), flatten(hide_in(config))
        keys = [key for key in find_changed_keys(old, new) if key != "resume"]
        if layout := [key for key in keys if is_of_class(key, LAYOUT)]:
            log.warning("%s changed: the next steps equal those of before up to rounding", ", ".join(layout))
        if keys:
            changed = {key: [old.get(key), new.get(key)] for key in keys}
            log.info("changed since the last attempt: %s", ", ".join(keys))
            append(self.path / CHANGES, json.dumps({"time": time.time(), "changed": changed}) + "\n")

    def _check_same(self, before: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        old, new = get_identity(before), get_identity(config)
        changed = find_changed_keys(old, new)
        if changed:
            shown = join_some([f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed])
            raise UserError(
                f"run_dir={self.path} belongs to another configuration ({shown}); name another run_dir or undo these "
                "changes (caps of reinforce_ada.budget, checkpointing, logger, micro-batches and the parallel layout "
                "may change)"
            )

    def list_checkpoints(self) -> list[Path]:
        """Return the complete step folders, oldest first. Folders with other names are ignored."""
        folders = find_saves(self.path, read_mapping(self.path / "config.yaml")).glob("step_*")
        return sorted((f for f in folders if re.fullmatch(r"step_\d{1,18}", f.name)), key=lambda f: int(f.name[5:]))

    def find_newest_checkpoint(self) -> Path | None:
        """Return the newest step folder whose checksums match. Damaged ones are logged and skipped."""
        for folder in reversed(self.list_checkpoints()):
            try:
                verify_folder(folder, needs=[STATE])
            except UserError as error:
                log.warning("checkpoint skipped: %s", error)
                continue
            return folder
        return None

    def find_resume_point(self) -> Path | None:
        """Return the checkpoint that a resumed run starts from, or None where nothing is saved.

        Damaged newer folders are renamed, because the run writes new ones under their names.

        Raises:
            UserError: All step folders are damaged, and a new start would overwrite the run.
        """
        saved, newest = self.list_checkpoints(), self.find_newest_checkpoint()
        if saved and newest is None:
            raise UserError(
                f"{saved[0].parent}: every checkpoint is damaged ({', '.join(folder.name for folder in saved)}); "
                "restore one, or start again in another run_dir"
            )
        for folder in saved[saved.index(newest) + 1 :] if newest is not None else []:
            folder.replace(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))
        return newest

    def checkpoint_folder(self, step: int) -> Path:
        """Return the folder of the state after `step` steps."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def rewind(self, step: int) -> None:
        """Drop the records of steps after `step`, because the run repeats these steps. -1 drops all."""
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            steps = ((line.get("step", 0), line) for line in read_lines(self.path / name))
            kept = [line for number, line in steps if isinstance(number, int) and number <= step]
            write_atomically(self.path / name, "".join(json.dumps(line) + "\n" for line in kept))

    def log(self, name: str, values: Mapping[str, Any], *, tensorboard: bool) -> None:
        """Append a record with a `step` to NAME.jsonl and to TensorBoard."""
        append(self.path / f"{name}.jsonl", json.dumps(dict(values)) + "\n")
        if tensorboard:
            self._log_events(values)

    def _log_events(self, values: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer = EventFileWriter(str(self.path / "tensorboard"))
            restart = SessionLog(status=SessionLog.START)  # TensorBoard then drops later steps of earlier attempts
            self._writer.add_event(Event(wall_time=time.time(), step=values["step"], session_log=restart))
        scalars = [
            Summary.Value(tag=key, simple_value=float(value))
            for key, value in values.items()
            if isinstance(value, (int, float)) and key != "step"
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=values["step"], summary=Summary(value=scalars)))

    def close(self) -> None:
        """Close the event file and unlock the folder."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_lines(path: Path) -> list[Record]:
    """Read the records of a JSONL file that a run wrote. Damaged lines, such as one cut off by a kill, are left out.

    Returns:
        The records. The list is empty where the file does not exist.

    Raises:
        UserError: The file cannot be read.
    """

    def warn(number: int, reason: str) -> None:
        log.warning("%s: line %d was left out: %s", path, number, reason)

    try:
        return [record for _, record in read_records(path, on_damage=warn)] if path.exists() else []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
