"""A math environment for NeMo-RL that uses nemo_ada.verify. Its processes can be killed, and its deadline is hard.

NeMo-RL's own environment gives every timeout and every error of math-verify the reward 0. Here an answer without a
verdict gets the reward NaN and an observation with the cause. Under `reinforce_ada` such a response has no label. In
training it is counted by its cause and drawn again. In validation it counts as wrong, and validation/ada/without_label
logs how many there were. NeMo-RL's own estimators would train on NaN, so the launcher refuses them with this
environment. The preset `grpo` is plain GRPO.

    env: {ada_math: {deadline_s: 5.0, workers: 8}}        data: {default: {env_name: ada_math}}

`env.ada_math.verifier` names another kind of verifier than `math`. `env.ada_math.reward=my_rewards:exact` asks a
function of the user's, in the same processes. The judge, and how it reads a reference, are those of CPU training.

`register` also takes environments of your own. configs/README.md has an example.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from nemo_ada import by_name
from nemo_ada.errors import UserError
from nemo_ada.nemo.rollouts.response import ADA_MATH, CORRECT, INCORRECT, NO_VERDICT
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.judge import ByValue, Response, judge_of_section

log = logging.getLogger(__name__)
FIRST_RESPONSES = 64  # that are looked at for a box


class MathJudge(EnvironmentInterface):
    """Judges a response against `ground_truth` of the metadata, as the data have it. An episode has one turn."""

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        """Start the verifier's processes.

        Args:
            cfg: Fields of VerifierLimits, `verifier`, and `reward`: a function of the user's that judges in its place.
        """
        self._judge = judge_of_section(cfg or {}, f"env.{ADA_MATH}")
        self._seen = self._boxed = 0
        self._judge.self_test()

    def step(self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> Any:
        """Judge responses. It is safe to call from many threads.

        Args:
            message_log_batch: the messages of each response.
            metadata: the metadata of each response, with `ground_truth`.

        Returns:
            NeMo-RL's EnvironmentReturn. Rewards are in [0, 1], and NaN without a verdict.
        """
        texts = [_read_text(log, asked=False) for log in message_log_batch]
        prompts = [_read_text(log, asked=True) for log in message_log_batch]
        references = [info["ground_truth"] for info in metadata]
        verdicts = self._judge.verdicts([
            Response(text, reference, prompt=prompt)  # response.py sees the cut
            for text, reference, prompt in zip(texts, references, prompts, strict=True)
        ])  # fmt: skip
        self._say_boxes(texts)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": _make_observation(v.label, v.cause)} for v in verdicts],
            metadata=metadata,
            next_stop_strings=[None] * len(verdicts),
            rewards=torch.tensor([float("nan") if v.label is None else v.label for v in verdicts]),
            terminateds=torch.ones(len(verdicts)),
            answers=None,
        )

    def _say_boxes(self, texts: list[str]) -> None:
        """Say once where most of the first responses have no box, because then all of them are wrong."""
        if self._judge.kind != ByValue.kind or self._seen >= FIRST_RESPONSES:
            return
        self._seen += len(texts)
        self._boxed += sum(last_boxed(text) is not None for text in texts)
        if self._seen >= FIRST_RESPONSES and self._boxed < self._seen / 2:
            log.warning(
                "%d of the first %d responses have no \\boxed{}, and count as wrong; does the prompt ask for one?",
                self._seen - self._boxed, self._seen,
            )  # fmt: skip

    def counts(self) -> dict[str, int]:
        """Return the number of verdicts so far, by cause."""
        return self._judge.counts

    def shutdown(self) -> None:
        """End the verifier's processes."""
        self._judge.close()

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Add nothing, because labels and failures are counted where the responses are."""
        return batch, {}


def _read_text(log: list[dict[str, Any]], *, asked: bool) -> str:
    """Return what the model has written, or what it was asked."""
    return "".join(str(turn["content"]) for turn in log if (turn["role"] != "assistant") == asked)


def _make_observation(label: float | None, cause: str | None) -> str:
    return NO_VERDICT + str(cause) if label is None else (CORRECT if label > 0 else INCORRECT)


AdaMathEnvironment = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=256)(MathJudge)


def register(sections: Mapping[str, Any] | None = None) -> None:
    """Make `ada_math` and every environment with a `class` in its section known to NeMo-RL.

    It may be called repeatedly.

    Args:
        sections: the configuration's `env`. `class` is a Ray actor class with NeMo-RL's EnvironmentInterface, such as
            my_reward.Mine or path/my_reward.py:Mine. The class gets its section as its only argument.

    Raises:
        UserError: a class does not exist or is not a Ray actor class, or NeMo-RL itself uses a name.
    """
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import ENV_REGISTRY, register_env

    named = {name: section.get("class") for name, section in (sections or {}).items() if isinstance(section, Mapping)}
    users = {name: _name_actor(f"env.{name}.class", str(path)) for name, path in named.items() if path}
    for name, path in {ADA_MATH: f"{__name__}.AdaMathEnvironment", **users}.items():
        if name in ENV_REGISTRY:
            if name in users and ENV_REGISTRY[name]["actor_class_fqn"] != path:
                raise UserError(f"env.{name}.class={path}: NeMo-RL has an environment {name}; take another name")
            continue
        ACTOR_ENVIRONMENT_REGISTRY[path] = PY_EXECUTABLES.SYSTEM
        register_env(name, path)


def _name_actor(key: str, name: str) -> str:
    """Return the name by which NeMo-RL finds a user's class. Workers get the code with the class, not from a folder."""
    actor = by_name.load(key, name if ":" in name else ":".join(name.rsplit(".", 1)))
    if not hasattr(actor, "options"):
        raise UserError(f"{key}={name} is no Ray actor class; put @ray.remote in front of it")
    for module in by_name.list_modules():
        ray.cloudpickle.register_pickle_by_value(module)
    return f"{actor.__module__}.{name.rpartition(':' if ':' in name else '.')[2]}"
