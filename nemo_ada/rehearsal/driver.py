"""The driver of one run of a rehearsal, or of several with the same workers. It calls our launcher.

    python -m nemo_ada.rehearsal.driver CONFIG.json [CONFIG.json ...] [--logprobs FILE] [--observe] [--learns]

It runs in the policy interpreter. A run has the name of its file. A run that fails does not end the runs after it,
unless the workers did not start, because the next run would find half of them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nemo_ada.errors import ProcessLostError, StallError, UserError
from nemo_ada.rehearsal import observe, probe
from nemo_ada.rehearsal.standins import OF_RUNS, ON_GPU, kept
from nemo_ada.rehearsal.standins.replacing import call_when_imported
from nemo_ada.run.files import json_of
from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_LOST, EXIT_STALLED, EXIT_USER_ERROR
from nemo_ada.run.provenance import describe_environment

TOKENIZER = 3
"""Position of the tokenizer among the arguments of NeMo-RL's loops, after the policy."""
CONTROLLER = "nemo_ada.nemo.launch.controller"
"""It runs NeMo-RL's single controller, which is an actor. The learner and the engine are the driver's, too."""


def run_all(configs: Sequence[Path], logprobs: Path | None) -> int:
    """Make the runs of all configs. Returns the exit code of the first that failed, or 0."""
    observe.note(event="versions", **describe_environment())
    for replacements in OF_RUNS if len(configs) > 1 else ():
        replacements.install()
    for module in ("nemo_rl.algorithms.grpo", "nemo_rl.algorithms.grpo_sync"):
        call_when_imported(module, lambda loop: _probe_loops(loop, logprobs))
    call_when_imported(CONTROLLER, lambda launcher: _probe_controller(launcher, logprobs))
    codes = []
    for path in configs:
        observe.note(event="run", name=path.stem)
        codes.append(run(json_of(path)))
        if codes[-1] and not kept.has_started():
            break
    kept.end_workers()
    return next((code for code in codes if code), EXIT_DONE)


def run(config: dict[str, Any]) -> int:
    """Train as configured. Returns the launcher's exit code."""
    try:
        with observe.phase("start"):
            importlib.import_module("nemo_rl.algorithms.grpo")
            launch = importlib.import_module("nemo_ada.nemo.launch.command")
        code: int = launch.train(config, judged=True)
    except UserError as error:
        observe.note(event="refused", kind=type(error).__name__, message=str(error))
        return EXIT_USER_ERROR
    except (ProcessLostError, StallError) as error:
        observe.note(event="failed", kind=type(error).__name__, message=observe.shorten_error(error))
        return EXIT_LOST if isinstance(error, ProcessLostError) else EXIT_STALLED
    except Exception as error:  # noqa: BLE001 - whatever NeMo-RL raises is the result of the rehearsal
        traceback.print_exc()
        observe.note(event="failed", kind=type(error).__name__, message=observe.shorten_error(error))
        return EXIT_FAILED
    observe.note(event="done", code=code)
    return code


def _probe_loops(loop: Any, logprobs: Path | None) -> None:
    """Probe the learner before and after NeMo-RL's training loops. Without `logprobs` note its memory only."""
    for name in ("grpo_train", "grpo_train_sync"):
        if hasattr(loop, name):
            setattr(loop, name, _probe_loop(getattr(loop, name), logprobs))
    if logprobs is not None and hasattr(loop, "async_grpo_train"):
        loop.async_grpo_train = _probe_async_loop(loop.async_grpo_train, logprobs)


def _probe_loop(train: Callable[..., Any], logprobs: Path | None) -> Callable[..., Any]:
    @functools.wraps(train)
    def train_and_probe(policy: Any, *args: Any, **kwargs: Any) -> Any:
        if logprobs is None:
            try:
                return train(policy, *args, **kwargs)
            finally:
                probe.note_memory(policy)
        _probe_before(policy, args[TOKENIZER], logprobs)
        result = train(policy, *args, **kwargs)
        _probe_after(policy, logprobs)
        return result

    return train_and_probe


def _probe_async_loop(train: Callable[..., Any], logprobs: Path) -> Callable[..., Any]:
    def train_and_probe(policy: Any, generation: Any, *args: Any, **kwargs: Any) -> Any:
        _probe_before(policy, args[TOKENIZER - 1], logprobs)
        engine = type(generation)
        shutdown = engine.shutdown

        def probe_and_shut_down(self: Any) -> Any:  # the loop ends its workers itself, so this is the last chance
            engine.shutdown = shutdown
            try:
                with observe.phase("probe: engine"):  # after the last refit
                    probe.compare_engine(policy, self, logprobs)
                _probe_after(policy, logprobs)
            finally:
                ended = shutdown(self)
            return ended

        engine.shutdown = probe_and_shut_down
        return train(policy, generation, *args, **kwargs)

    return train_and_probe


def _probe_controller(launcher: Any, logprobs: Path | None) -> None:
    """Probe learner and engine in the driver, before the single controller begins and after it has ended."""
    run_controller = launcher.run_controller

    @functools.wraps(run_controller)
    def run_and_probe(parts: Any, *args: Any, **kwargs: Any) -> Any:
        policy = parts["policy"]
        if logprobs is None:
            try:
                return run_controller(parts, *args, **kwargs)
            finally:
                probe.note_memory(policy)
        _probe_before(policy, parts["tokenizer"], logprobs)
        result = run_controller(parts, *args, **kwargs)
        with observe.phase("probe: engine"):  # after the last refit
            probe.compare_engine(policy, parts["policy_generation"], logprobs)
        _probe_after(policy, logprobs)
        return result

    launcher.run_controller = run_and_probe


def _probe_before(policy: Any, tokenizer: Any, logprobs: Path) -> None:
    """Compare the learner with Hugging Face, on rows that are made where there are none."""
    with observe.phase("probe: log-probs"):
        if not logprobs.exists():
            probe.write_rows(policy, tokenizer, logprobs)
        probe.compare_logprobs(policy, logprobs)


def _probe_after(policy: Any, logprobs: Path) -> None:
    """Note the memory, keep the learner's log-probabilities for the export, and compare gradient norms."""
    with observe.phase("probe: memory"):
        probe.note_memory(policy)
    with observe.phase("probe: log-probs"):
        probe.keep_logprobs(policy, logprobs)
    with observe.phase("probe: gradient norms"):
        probe.compare_gradient_norms(policy)


def main(arguments: Sequence[str]) -> int:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--logprobs", type=Path)
    parser.add_argument("--observe", action="store_true", help="note phases; a rehearsal's interpreter does it itself")
    parser.add_argument("--learns", action="store_true", help="end a run whose first step has no right answer")
    parsed = parser.parse_args(arguments)
    if parsed.learns:
        call_when_imported("nemo_rl.utils.logger", observe.require_right_answers)
    if parsed.observe:
        observe.install_observers()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if os.environ.get(ON_GPU):
        observe.watch_memory()
    return run_all(parsed.configs, parsed.logprobs)


def exit_now(code: int) -> None:
    """Shut Ray down and leave without finalizers, because that of NeMo-RL's Policy would start Ray again."""
    sys.stdout.flush()
    sys.stderr.flush()
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()
    os._exit(code)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
