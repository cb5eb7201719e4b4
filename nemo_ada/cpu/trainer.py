"""The training loop of the CPU back end. Its steps are those of NeMo-RL's grpo_train.

A step samples (rollout actor), updates (learner ranks) and refits the engine. Some steps also evaluate and save. Each
phase is timed. The state between steps is the learner, the sampler, the data position and the totals, and a checkpoint
has exactly these. With async_grpo the next step's responses are drawn during update and save. A resumed run draws them
again, with the newer weights.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.core.metrics import add_prefix
from nemo_ada.core.prompts.order import PromptOrder
from nemo_ada.cpu import checkpoint
from nemo_ada.cpu.base import prepare_base
from nemo_ada.cpu.checkpoint import SavedState
from nemo_ada.cpu.learner.group import LearnerGroup
from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.cpu.learner.update import OF_HALVES, check_agreement, train_on
from nemo_ada.cpu.model_folder import check_model_folder
from nemo_ada.cpu.processes.actors import START_SECONDS
from nemo_ada.cpu.rollout import HeldoutScores, StepData, choose_max_new_tokens
from nemo_ada.cpu.settings import RunConfig
from nemo_ada.cpu.stack import Stack, build_run_task, choose_model_shape, make_learner_config, packs_rows
from nemo_ada.errors import InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.run.files import json_of, touch, write_atomically
from nemo_ada.run.folder import CONTRACT, RunDir
from nemo_ada.run.job_control import JobControl, find_key_to_lower, handle_signals
from nemo_ada.run.observer import Observer
from nemo_ada.tasks.heldout import write_heldout
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.prompting import ModelTokenizer, find_differences, read_contract
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.settings import JsonlSettings

log = logging.getLogger(__name__)

ENGINE_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vLLM 0.32, CPU attention
EVALUATION_STREAM = 11
MEASURED = (*OF_HALVES, "effective_updates")  # of the learner, logged as ada/NAME


@dataclass(slots=True)
class Totals:
    """The costs of a run so far. Runs are compared along them.

    Attributes:
        responses: responses drawn.
        tokens: tokens drawn.
        rows: rows trained on, placeholder rows included.
        live_rows: rows with an advantage.
        engine_steps: engine steps of all sampling phases.
        seconds: seconds of all steps, without evaluations and saves.
    """

    responses: int = 0
    tokens: int = 0
    rows: int = 0
    live_rows: int = 0
    engine_steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        exit_code: exit code of the process.
        step: complete steps.
        evaluation: record of the last evaluation. Empty without one.
    """

    exit_code: int
    step: int
    evaluation: Mapping[str, Any] = field(default_factory=dict)


def check_run(config: RunConfig, task: Task) -> PolicyShape:
    """Check all that can be checked before any process starts.

    Args:
        config: the run's configuration.
        task: the run's task.

    Returns:
        The shape of the model.

    Raises:
        UserError: the run cannot work.
    """
    model, own = config.policy.model_name, "policy.model"
    if model is None:
        shape = choose_model_shape(config, task)
    else:
        shape, own = check_model_folder(model, task.tokenizer.vocab_size), f"policy.model_name={model}"
    make_learner_config(config, shape)
    if shape.head_dim not in ENGINE_HEAD_DIMS:
        raise UserError(
            f"{own}: attention heads of {shape.head_dim} do not work with vLLM on a CPU; choose hidden_size and "
            f"num_attention_heads for heads of one of {', '.join(map(str, ENGINE_HEAD_DIMS))}"
        )
    longest = choose_max_new_tokens(config.policy, task)
    length = task.max_prompt_tokens + longest
    if length > shape.max_position_embeddings:
        raise UserError(
            f"prompts of {task.max_prompt_tokens} tokens and policy.generation.max_new_tokens="
            f"{longest} need {length} positions, the model has {shape.max_position_embeddings}; "
            f"lower max_new_tokens to {shape.max_position_embeddings - task.max_prompt_tokens}"
        )
    PromptOrder(len(task.splits().train), config.grpo.seed)
    threshold = config.reinforce_ada.positive_threshold
    if not 0.0 <= threshold < 1.0:
        raise UserError(
            f"reinforce_ada.positive_threshold={threshold:g}: rewards lie from 0 to 1 and a response is correct above "
            "the threshold, so all would be on one side of it; use a number from 0 to below 1, such as 0.7"
        )
    plan = config.reinforce_ada.plan(config.grpo.num_generations_per_prompt, longest)
    prompts = config.grpo.num_prompts_per_step
    estimated = config.reinforce_ada.sampling.kind == "estimation"
    plan.check_first_waves(prompts, prompts * plan.group_size if estimated else None)
    return shape


def list_warnings(config: RunConfig, task: Task) -> Iterator[tuple[str, str]]:
    """Say what a run can do, but hardly is what its user wants: (key, sentence)."""
    yield from _describe_other_prompts(config, task)
    if isinstance(task, JsonlTask):
        yield from (("task.path", f"{task.settings.path}: {sentence}") for sentence in task.audit())
    count = len(task.splits().train)
    wanted = config.grpo.num_prompts_per_step + config.reinforce_ada.reserve_prompts
    if wanted > count:
        yield (
            "grpo.num_prompts_per_step",
            f"a step asks for {wanted} prompts and the data has {count} for training, so prompts come more than once "
            f"in a step; lower grpo.num_prompts_per_step to {count} or less, or add data",
        )


def _describe_other_prompts(config: RunConfig, task: Task) -> Iterator[tuple[str, str]]:
    """Say where the model, or the pass rates of the data, were made with prompts that differ from the run's."""
    if not isinstance(task.tokenizer, ModelTokenizer):
        return
    now, before = task.tokenizer.make_contract(), {}
    if config.policy.model_name is not None:
        before["policy.model_name", config.policy.model_name] = read_contract(Path(config.policy.model_name))
    if isinstance(config.task, JsonlSettings):
        with suppress(OSError, ValueError, AttributeError):
            card = json_of(Path(config.task.path).with_name("card.json"))
            before["task.path", config.task.path] = card.get("prompts")
    for (key, value), contract in before.items():
        if contract and (found := find_differences(contract, now)):
            yield (
                key,
                f"{key}={value} was made with other prompts than this run's: {'; '.join(found)}; set policy.tokenizer "
                "to ask alike",
            )


def compute_evaluation_seed(run_seed: int, step: int) -> int:
    """Compute the engine's seed for the evaluation after a step. It differs between runs and between steps."""
    return int(np.random.SeedSequence([run_seed, step, EVALUATION_STREAM]).generate_state(1)[0])


class Trainer:
    """One run on a started stack."""

    def __init__(self, config: RunConfig, stack: Stack, task: Task, observer: Observer | None = None) -> None:
        self.config, self.stack, self.task = config, stack, task
        self.observer = observer or Observer()
        self.run_dir = RunDir(config.folder)
        self.control = JobControl(config.folder, config.grpo.max_num_steps)
        self.order = PromptOrder(len(task.splits().train), config.grpo.seed)
        self.step = 0
        self.position = 0
        self.totals = Totals()
        self._learner: LearnerGroup | None = None
        self._ahead: Callable[[], StepData | None] | None = None  # the next step, being drawn
        self._sampler_state: dict[str, Any] = {}  # the state before the sampler began to draw them
        self._evaluated: dict[str, Any] = {}
        self._saved_at = -1
        self._agreed = False  # whether engine and learner were compared, at the first step

    @property
    def learner(self) -> LearnerGroup:
        """The learner. Raises InvariantError before `run` has started it."""
        if self._learner is None:
            raise InvariantError("the learner has not been started")
        return self._learner

    def run(self) -> Outcome:
        """Train to the last step, or until a stop is requested. An error of a part passes through."""
        config = self.config
        self.run_dir.open(config.model_dump(mode="json"), resume=config.resume == "auto")
        (config.folder / "DROP").unlink(missing_ok=True)
        self.control.heartbeat(0)
        with self._signals():
            try:
                self._start()
                self.control.status("running", self.step)
                reason = self._loop()
                code, message = self.control.report_end(self.step, reason, saved=self._saved_at == self.step)
            except (ProcessLostError, StallError):
                with suppress(OSError):  # a full disk must not hide the error
                    self.stack.keep_stacks(config.folder / "stacks")
                    self.control.status("interrupted", self.step)
                raise
            except BaseException as error:
                with suppress(OSError):
                    self.control.status("failed", self.step)
                if advice := find_key_to_lower(error, self._memory_keys):
                    raise InvariantError(f"{error}; {advice}") from error
                raise
            finally:
                self.run_dir.close()
        if message:
            self.observer.on_message(message)
        return Outcome(code, self.step, self._evaluated)

    @property
    def _memory_keys(self) -> dict[str, str]:
        """A part of an error's text -> the setting that needs less memory."""
        packed = packs_rows(self.config)
        learner = "policy.sequence_packing.train_mb_tokens" if packed else "policy.train_micro_batch_size"
        return {"learner": learner, "the rollout": "policy.generation.max_num_seqs"}

    def _start(self) -> None:
        config, task = self.config, self.task
        shape = check_run(config, task)
        if isinstance(task.tokenizer, ModelTokenizer):
            contract = task.tokenizer.make_contract()
            write_atomically(config.folder / CONTRACT, json.dumps(contract, indent=1, ensure_ascii=False) + "\n")
        write_heldout(config.folder, task, config.task, choose_max_new_tokens(config.policy, task))
        base_folder = prepare_base(config, task, self.stack, self.observer.on_base)
        self._learner = self.stack.learner(make_learner_config(config, shape), base_folder)
        sampler = config.reinforce_ada.sampler(
            config.grpo.num_generations_per_prompt,
            choose_max_new_tokens(config.policy, task),
            run_seed=config.grpo.seed,
            features=shape.hidden_size,
        )
        run_dir = str(config.folder.resolve())
        self.stack.call("open", str(base_folder.resolve()), sampler, config.policy, run_dir, seconds=START_SECONDS)
        newest = self.run_dir.find_resume_point() if config.resume == "auto" else None
        for _, warning in list_warnings(config, task):
            self.observer.on_message(f"warning: {warning}")
        if newest is not None:
            self._load(newest)
            self.observer.on_message(f"resumed from {newest}")
        self.run_dir.rewind(-1 if newest is None else self.step)
        if self.step == 0 and config.grpo.val_at_start and not self._evaluated:
            self._evaluate()

    def _loop(self) -> str | None:
        """Train until the last step. Returns the reason of an early stop, or None."""
        grpo, saving = self.config.grpo, self.config.checkpointing
        while self.step < grpo.max_num_steps:
            reason = self.control.find_stop_reason()
            if reason is None and not self._train_step():
                reason = self.control.find_stop_reason() or "sampling was told to drop its step"
            if reason is not None:
                self._save()
                return reason
            last = self.step == grpo.max_num_steps
            if last or (grpo.val_period and self.step % grpo.val_period == 0):
                self._evaluate()
            if last or self.step % saving.save_period == 0:
                self._save()
        return None

    def _train_step(self) -> bool:
        """Train one step. Returns False when it was dropped while sampling, which changes nothing."""
        config, step = self.config, self.step + 1
        times: dict[str, float] = {}
        ahead, asynchronous = self._ahead, config.grpo.async_grpo
        with self._phase("sampling", times):
            data = (ahead or self._draw(step, self.position))()
            self._ahead = None
            if data is None:
                return False
            if asynchronous.enabled and asynchronous.max_trajectory_age_steps and step < config.grpo.max_num_steps:
                self._sampler_state = self.stack.call("sampler_state")
                self._ahead = self._draw(step + 1, self.position + data.used)
        with self._phase("update", times):
            if not self._agreed and ahead is None:  # responses that were drawn ahead come from other weights
                check_agreement(self.learner, data)
                self._agreed = True
            learned = self._update(data, step)
        with self._phase("refit", times):
            self.stack.call("refit", self.learner.weights())
        self.step, self.position = step, self.position + data.used
        seconds = sum(times.values())
        self.totals.responses += int(data.metrics["ada/samples_drawn"])
        self.totals.tokens += int(data.metrics["ada/tokens_drawn"])
        self.totals.rows += len(data.length_R)
        self.totals.live_rows += int(data.metrics["ada/live_rows"])
        self.totals.engine_steps += data.engine_steps
        self.totals.seconds += seconds
        self.control.observe_step(seconds)
        record = {
            "step": step,
            **{f"train/{name}": value for name, value in learned.items() if name not in MEASURED},
            **add_prefix({name: value for name, value in learned.items() if name in MEASURED}),
            **data.metrics,
            **(add_prefix({"response_age": float(ahead is not None)}) if asynchronous.enabled else {}),
            "engine_steps": data.engine_steps,
            **{f"time/{name}": value for name, value in times.items()},
            "time/step": seconds,
            **{f"total/{name}": value for name, value in asdict(self.totals).items()},
        }
        self.run_dir.log("metrics", record, tensorboard=config.logger.tensorboard)
        self.control.status("running", step)
        self.observer.on_step(record)
        for warning in data.warnings:
            self.observer.on_message(f"warning: {warning}")
        return True

    def _update(self, data: StepData, step: int) -> dict[str, float]:
        """Train on the rows of a step. Returns the learner's metrics."""
        return train_on(self.learner, data, self.config, step)

    def _draw(self, step: int, position: int) -> Callable[[], StepData | None]:
        """Begin to draw a step's responses with the engine's weights. Returns a function that waits for them."""
        reserve = self.config.reinforce_ada.reserve_prompts
        indices = self.order.at(position, self.config.grpo.num_prompts_per_step + reserve)
        return self.stack.begin("sample", step, indices.tolist(), reserve, self._features(indices))

    def _features(self, indices: np.ndarray) -> np.ndarray | None:
        """Compute the features [P, hidden] for an estimator that needs them, else None.

        It is the mean of the policy's last hidden states over the tokens of each prompt.
        """
        if not self.config.reinforce_ada.estimator.needs_features:
            return None
        rows = [self.task.tokenizer.encode(self.task.splits().train[i].text) for i in indices.tolist()]
        length_R = np.array([len(row) for row in rows], np.int64)
        tokens_RT = np.full((len(rows), int(length_R.max())), self.task.tokenizer.pad_id, np.int64)
        for row, tokens in zip(tokens_RT, rows, strict=True):
            row[: len(tokens)] = tokens
        return np.asarray(self.learner.features(tokens_RT, length_R), np.float64)

    def _evaluate(self) -> None:
        settings = self.config.validation
        count = len(self.task.splits().heldout)
        indices = None if settings.max_prompts is None else list(range(min(settings.max_prompts, count)))
        seed = compute_evaluation_seed(self.config.grpo.seed, self.step)
        times: dict[str, float] = {}
        with self._phase("evaluation", times):
            scores: HeldoutScores = self.stack.call("evaluate", indices, settings.responses, settings.temperature, seed)
        record = {
            "step": self.step,
            "val/accuracy": float(scores.reward_PK.mean()),
            f"val/pass@{settings.responses}": float((scores.reward_PK > 0).any(axis=1).mean()),
            "val/response_length": float(scores.length_PK.mean()),
            "val/without_label": scores.without_label,
            "time/evaluation": times["evaluation"],
            **{f"total/{name}": value for name, value in asdict(self.totals).items()},
            "samples": list(scores.samples),
        }
        self.control.observe_validation(times["evaluation"])
        self._evaluated = record
        self.run_dir.log("evaluations", record, tensorboard=self.config.logger.tensorboard)
        self.observer.on_evaluation(record)

    def _save(self) -> None:
        saving = self.config.checkpointing
        if not saving.enabled or self._saved_at == self.step:
            return
        times: dict[str, float] = {}
        with self._phase("save", times):
            sampler = self._sampler_state if self._ahead is not None else self.stack.call("sampler_state")
            state = SavedState(self.step, self.position, asdict(self.totals), sampler, self._evaluated)
            checkpoint.save(self.run_dir, state, self.config, self.learner, self.task.tokenizer)
        self._saved_at = self.step
        self.control.observe_save(times["save"])

    def _load(self, folder: Path) -> None:
        state = checkpoint.load(folder, self.config, self.learner)
        self.stack.call("load_sampler_state", state.sampler)
        self.stack.call("refit", self.learner.weights())
        self.step, self.position = state.step, state.position
        self.totals = Totals(**state.totals)
        self._evaluated = dict(state.evaluated)
        self._saved_at = self.step

    @contextmanager
    def _phase(self, name: str, times: dict[str, float]) -> Iterator[None]:
        """Announce a phase to the heartbeat and the observer, and write its seconds into times[name]."""
        self.control.heartbeat(self.step, name)
        self.observer.on_phase(self.step, name)
        started = time.perf_counter()
        yield
        times[name] = time.perf_counter() - started

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within the block SIGINT, SIGTERM and SIGHUP request a stop.

        A step that is sampling is dropped. A step in a later phase is finished.
        """

        def stop(reason: str) -> None:
            self.control.request(reason)
            touch(self.config.folder / "DROP")

        try:
            with handle_signals(stop):
                yield
        finally:
            (self.config.folder / "DROP").unlink(missing_ok=True)


def train(config: RunConfig, observer: Observer | None = None) -> Outcome:
    """Start the processes of the CPU back end and train.

    Args:
        config: the run's configuration.
        observer: it gets every step, phase, evaluation and message.

    Raises:
        UserError: the run cannot work. It is raised before any process starts.
    """
    RunDir(config.folder).check(config.model_dump(mode="json"), resume=config.resume == "auto")
    task = build_run_task(config)
    check_run(config, task)
    with Stack(config) as stack:
        return Trainer(config, stack, task, observer).run()
