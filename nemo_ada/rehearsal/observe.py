"""Record what happens inside the processes of a rehearsal: phases, metrics per step and training rows.

NeMo-RL's functions are wrapped and not replaced. Each wrapper notes its phase, calls the original, and notes the end or
the error. Every process appends JSON lines to the same file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rehearsal.standins.replacing import Names, call_when_imported
from nemo_ada.run.files import append

FILE = "NEMO_ADA_REHEARSAL_EVENTS"
MAX_MESSAGE = 2000
GYM_SECONDS = "nemo_gym_init_time_s"  # NeMo-RL's metric of its set-up: the start of NeMo-Gym's servers
CODES = re.compile(r"\x1b\[[0-9;]*m")

FUNCTIONS: tuple[tuple[str, str, str], ...] = (
    # phase, module, dotted name
    ("set-up", "nemo_rl.algorithms.grpo", "setup"),
    ("set-up", "nemo_rl.algorithms.single_controller_utils", "setup_single_controller"),
    ("tokenizer", "nemo_rl.algorithms.utils", "get_tokenizer"),
    ("data", "nemo_rl.data.utils", "setup_response_data"),
    ("learner start", "nemo_rl.models.policy.lm_policy", "Policy.__init__"),
    ("engine start", "nemo_rl.models.generation.vllm.vllm_generation", "VllmGeneration.__init__"),
    ("conversion", "nemo_rl.models.megatron.community_import", "import_model_from_hf_name"),
    ("refit", "nemo_rl.algorithms.grpo", "refit_policy_generation"),
    ("refit", "nemo_rl.weight_sync.collective_weight_synchronizer", "CollectiveWeightSynchronizer.sync_weights"),
    ("refit", "nemo_rl.weight_sync.ipc_weight_synchronizer", "IPCWeightSynchronizer.sync_weights"),
    ("score", "nemo_rl.experience.rollouts", "calculate_rewards"),
    ("validate", "nemo_rl.algorithms.grpo", "validate"),
    ("validate", "nemo_rl.algorithms.grpo_sync", "validate_sync"),
    ("save", "nemo_rl.models.policy.lm_policy", "Policy.save_checkpoint"),
)
TIMED: Mapping[str, str] = {
    "generation": "generate",
    "exposed_generation": "generate",  # asynchronous: what the loop waits for
    "policy_and_reference_logprobs": "log-probs",
    "advantage_calculation": "advantages",
    "policy_training": "update",
    "checkpointing": "save",
}


def note(**event: Any) -> None:
    """Append one event to the file. The system writes a line of this length in one piece."""
    path = os.environ.get(FILE)
    if not path:
        return
    line = json.dumps({"time": time.time(), "pid": os.getpid(), **event}, default=str) + "\n"
    append(Path(path), line, durable=False)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Note how long a block took, by the clock and in CPU seconds of this process, or which error ended it."""
    started, cpu = time.monotonic(), time.process_time()
    note(event="begin", phase=name)
    try:
        yield
    except BaseException as error:
        note(event="error", phase=name, kind=type(error).__name__, message=shorten_error(error))
        raise
    seconds = {"seconds": time.monotonic() - started, "cpu": time.process_time() - cpu}
    note(event="end", phase=name, **{name: round(value, 3) for name, value in seconds.items()})


SAMPLE_SECONDS, LEAST_CHANGE = 0.1, 64 << 20


def watch_memory() -> None:
    """Note the memory of the GPU that is in use, of all processes, whenever it has changed. A thread looks at it."""
    pynvml = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        note(event="card", name=f"NVML: {error}", total=0)
        return
    total = int(pynvml.nvmlDeviceGetMemoryInfo(card).total)
    note(event="card", name=str(pynvml.nvmlDeviceGetName(card)), total=total)

    def look() -> None:
        last = 0
        while True:
            used = int(pynvml.nvmlDeviceGetMemoryInfo(card).used)
            if abs(used - last) >= LEAST_CHANGE:
                note(event="used", bytes=used)
                last = used
            time.sleep(SAMPLE_SECONDS)

    threading.Thread(target=look, name="memory", daemon=True).start()


def shorten_error(error: BaseException) -> str:
    """The end of an error's message. The message of a remote error begins with its traceback."""
    return CODES.sub("", str(error).strip())[-MAX_MESSAGE:]


def install_observers() -> None:
    """Wrap the functions of every observed module as soon as it is imported."""
    for name, module, dotted in FUNCTIONS:
        call_when_imported(module, functools.partial(_observe, name, dotted))
    call_when_imported("nemo_rl.utils.timer", _observe_timer)
    call_when_imported("nemo_rl.utils.logger", _observe_logger)
    call_when_imported("nemo_rl.models.policy.lm_policy", _observe_rows)
    call_when_imported("nemo_ada.core.sampler", _observe_prompts)


def _observe(name: str, dotted: str, module: ModuleType) -> None:
    """Wrap one function of a module."""
    names = Names(module, (dotted,))
    names.put(dotted, phase(name)(names.get(dotted)))


def _observe_timer(module: ModuleType) -> None:
    """Note the phases that NeMo-RL's loop times itself."""
    timed = module.Timer.time

    @contextmanager
    def time_and_note(self: Any, label: str) -> Iterator[None]:
        with timed(self, label), phase(TIMED[label]) if label in TIMED else nullcontext():
            yield

    module.Timer.time = time_and_note


def _observe_logger(module: ModuleType) -> None:
    """Note the numeric metrics of training and validation."""
    log_metrics = module.Logger.log_metrics

    @functools.wraps(log_metrics)
    def note_and_log(
        self: Any, metrics: Mapping[str, Any], step: int, prefix: str | None = "", *a: Any, **kw: Any
    ) -> Any:
        numbers = {name: number for name, value in metrics.items() if (number := _as_number(value)) is not None}
        if prefix in ("train", "validation", "timing/train"):
            note(event="metrics", step=step, prefix=prefix, numbers=numbers)
        if GYM_SECONDS in numbers:
            note(event="end", phase="servers", seconds=round(numbers[GYM_SECONDS], 3))
        return log_metrics(self, metrics, step, prefix, *a, **kw)

    module.Logger.log_metrics = note_and_log


def require_right_answers(module: ModuleType) -> None:
    """End a run at its first step where no answer is right: it would pay for the others and learn nothing."""
    log_metrics = module.Logger.log_metrics

    @functools.wraps(log_metrics)
    def log_and_judge(
        self: Any, metrics: Mapping[str, Any], step: int, prefix: str | None = "", *a: Any, **kw: Any
    ) -> Any:
        done = log_metrics(self, metrics, step, prefix, *a, **kw)
        if step == 1 and prefix == "train" and _as_number(metrics.get("ada/pass_rate", metrics.get("reward"))) == 0:
            raise UserError(
                "no answer of the first step is right, so nothing can be learned; look at the answers in the run's "
                "log: the prompt must ask for what the verifier reads"
            )
        return done

    module.Logger.log_metrics = log_and_judge


def _as_number(value: Any) -> float | None:
    """Return the value as a float, or None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


NEWEST_UPDATE: dict[str, Any] = {}
"""Rows and loss function of the newest update that had something to learn. `probe` trains on them again.

A call of Policy.train makes an update of each `train_global_batch_size` rows and reports the gradient norm of the last
one alone, whose rows may have no advantage where those of the others have.
"""


def _observe_rows(module: ModuleType) -> None:
    """Note the rows of every call of Policy.train, and whether each of its updates had something to learn."""
    train = module.Policy.train

    @functools.wraps(train)
    def note_and_train(self: Any, data: Any, loss_fn: Any, *args: Any, **kwargs: Any) -> Any:
        size = int(self.cfg["train_global_batch_size"])
        learns = find_gradients(data, size)
        if any(learns):
            start = size * max(update for update, learned in enumerate(learns) if learned)
            NEWEST_UPDATE.update(data=data.slice(start, start + size), loss_fn=loss_fn)
        note(event="rows", rows=hash_rows(data), prompts=hash_prompts(data), learns=learns)
        return train(self, data, loss_fn, *args, **kwargs)

    module.Policy.train = note_and_train


def find_gradients(data: Any, size: int) -> list[bool]:
    """Return for each update of `size` rows whether it has a token in the loss whose advantage is not zero.

    NeMo-RL keeps the advantage of a row that it takes out of the loss, such as one that was cut.
    """
    counts_RT = data["advantages"] != 0
    if "token_mask" in data:
        counts_RT = counts_RT & (data["token_mask"] != 0)
    if "sample_mask" in data:
        counts_RT = counts_RT & (data["sample_mask"] > 0).unsqueeze(-1)
    return [bool(update_RT.any()) for update_RT in counts_RT.split(size)]


def _observe_prompts(module: ModuleType) -> None:
    """Note the prompts of every step that was drawn group by group (asynchronous training)."""
    finish_step = module.AdaSampler.finish_step

    @functools.wraps(finish_step)
    def note_and_finish(self: Any, pools: Any, selection: Any = None) -> Any:
        note(event="prompts", step=int(pools[0].step) + 1, prompts=[pool.prompt_id for pool in pools])
        return finish_step(self, pools, selection)

    module.AdaSampler.finish_step = note_and_finish


def hash_prompts(data: Any) -> list[str]:
    """Return a short hash of the prompt of each training row: its tokens before the first that is trained on."""
    if "token_mask" not in data:
        return []
    hashes = []
    for tokens, mask in zip(data["input_ids"], data["token_mask"], strict=True):
        start = int(mask.argmax()) if bool(mask.any()) else len(tokens)
        hashes.append(hashlib.blake2b(tokens[:start].numpy().tobytes(), digest_size=6).hexdigest())
    return hashes


def hash_rows(data: Any) -> list[str]:
    """Return a short hash of each training row, from its tokens without padding and its advantage."""
    rows = zip(data["input_ids"], data["input_lengths"], data["advantages"], strict=True)
    hashes = []
    for tokens, length, advantages in rows:
        content = tokens[: int(length)].numpy().tobytes()
        advantage = round(float(advantages.flatten()[-1]), 4)
        hashes.append(hashlib.blake2b(content + repr(advantage + 0.0).encode(), digest_size=6).hexdigest())
    return hashes
