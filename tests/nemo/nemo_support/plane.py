"""NeMo-RL's synchronous trainer with a data plane on a CPU, in this process.

Real: the loop (grpo_sync.py), the rollout actor with its flattening and writing, the data plane's columns and codecs,
TQPolicy's methods for the life of a step, dynamic sampling, validation, checkpoints. Tiny: as in harness.py. The data
plane is NeMo-RL's reference one, and a stand-in of Ray calls the actor at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo_rl.algorithms.grpo_sync as grpo_sync
import nemo_rl.data_plane
import pytest
import torch
from nemo_rl.data_plane.adapters.noop import NoOpDataPlaneClient
from nemo_rl.data_plane.column_io import read_columns, write_columns
from nemo_rl.models.policy.tq_policy import TQPolicy

from nemo_ada.nemo.data_plane import driver
from nemo_ada.nemo.data_plane.actor import PLAIN
from nemo_support import harness
from nemo_support.tiny_policy import TinyPolicy

SETTINGS: dict[str, Any] = {
    "data_plane": {
        "enabled": True, "impl": "transfer_queue", "backend": "simple", "storage_capacity": 1000,
        "num_storage_units": 1, "claim_meta_poll_interval_s": 0.1, "global_segment_size": 1000,
        "local_buffer_size": 1000,
    },
    "env.should_log_nemo_gym_responses": True,  # no files of training batches, whose texts `Plane` leaves out
}  # fmt: skip
COLUMNS = ["input_ids", "input_lengths", "token_mask", "sample_mask"]


class Plane(NoOpDataPlaneClient):
    """NeMo-RL's reference data plane. It takes tensors only, so texts are left out. Nothing reads them here."""

    def put_samples(self, sample_ids: Any, partition_id: str, fields: Any = None, tags: Any = None) -> Any:
        if fields is not None:
            names = list(fields.keys())
            fields = fields.select(*(name for name in names if torch.is_tensor(fields.get(name))))
        return super().put_samples(sample_ids, partition_id, fields, tags)


class PlanePolicy(TinyPolicy):
    """A TinyPolicy behind the calls that the loop makes of NeMo-RL's TQPolicy. Those without workers are its own."""

    tq_partition_id = "train"
    _router_replay_enabled = False
    prepare_step, prepare_val_partition = TQPolicy.prepare_step, TQPolicy.prepare_val_partition
    discard_samples, finish_step = TQPolicy.discard_samples, TQPolicy.finish_step
    write_to_dataplane, read_from_dataplane = TQPolicy.write_to_dataplane, TQPolicy.read_from_dataplane

    def __init__(self, *args: Any, client: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dp_client, self.dp_cfg = client, SETTINGS["data_plane"]
        self.penalised = False  # whether the step has the reference's log-probabilities

    def _stamp_pad_seqlen(self, meta: Any) -> None:
        """No worker pads for a forward pass here."""

    def _read(self, meta: Any, *more: str) -> Any:
        return read_columns(self.dp_client, meta, [*COLUMNS, *more])

    def get_logprobs_from_meta(self, meta: Any, timer: Any = None) -> None:
        logprobs = self.get_logprobs(self._read(meta))["logprobs"]
        write_columns(self.dp_client, meta, {"prev_logprobs": logprobs})

    def get_reference_policy_logprobs_from_meta(self, meta: Any, timer: Any = None) -> None:
        logprobs = self.get_reference_policy_logprobs(self._read(meta))["reference_logprobs"]
        write_columns(self.dp_client, meta, {"reference_policy_logprobs": logprobs})
        self.penalised = True

    def train_from_meta(self, meta: Any, *, loss_fn: Any, timer: Any = None, **_: Any) -> dict[str, Any]:
        fields, self.penalised = ["reference_policy_logprobs"] if self.penalised else [], False
        batch = self._read(meta, "generation_logprobs", "prev_logprobs", "advantages", *fields)
        return self.train(batch, loss_fn)


class LocalRay:
    """Ray's calls, answered at once and in this process."""

    def __init__(self) -> None:
        self.actors: list[Any] = []

    def get(self, answer: Any) -> Any:
        return answer

    def wait(self, answers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return answers, []

    def remote(self, plain: type | None = None, **_: Any) -> Any:
        if plain is not None:
            return self.remote()(plain)
        return lambda cls: SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=functools.partial(self.start, cls))
        )

    def start(self, cls: type, **arguments: Any) -> Any:
        actor = cls(**arguments)
        self.actors.append(actor)
        names = [name for name in dir(cls) if not name.startswith("__")]
        return SimpleNamespace(**{name: SimpleNamespace(remote=getattr(actor, name)) for name in names})


@contextmanager
def local() -> Iterator[Plane]:
    """Within the block the loop's actors are objects of this process, and share one data plane."""
    client, ray = Plane(), LocalRay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo_sync, "ray", ray)
        patch.setattr(driver, "ray", ray)
        patch.setattr(grpo_sync, "make_actor_runtime_env", lambda name: {})  # NeMo-RL's would build an environment
        patch.setattr(grpo_sync, "SyncRolloutActor", ray.remote()(PLAIN))
        patch.setattr(nemo_rl.data_plane, "build_data_plane_client", lambda *_, **__: client)
        yield client


def run_plane(
    folder: Path, steps: int, overrides: dict[str, Any], run: Callable[..., Any] = harness.run_grpo, **options: Any
) -> Any:
    """`harness.run_grpo`, or `gym.run_gym`, with the trainer that has a data plane."""
    with local() as client:
        return run(
            folder,
            steps,
            {**SETTINGS, **overrides},
            policy_class=functools.partial(PlanePolicy, client=client),
            loop=grpo_sync.grpo_train_sync,
            **{"hooks": harness.hooks, **options},
        )
