"""The learner in the driver: one Ray actor per rank, and every call goes to all of them.

The driver never imports Megatron or the shim. Every wait has a deadline. A rank that dies, fails alone or is late ends
the group, because the other ranks may wait for it in a collective. The error names that rank.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from nemo_ada.cpu.learner.batch import Floats, TokenRows, TrainBatch
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.processes import actors as processes
from nemo_ada.cpu.processes.private_ray import LOOPBACK
from nemo_ada.errors import InvariantError, ProcessLostError, StallError, UserError

if TYPE_CHECKING:
    from nemo_ada.cpu.learner.rank import Learner

log = logging.getLogger(__name__)

_GRACE_S = 1.0

# One thread per rank (ranks share the cores), no compiler, and gloo on the loopback device only.
RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


class _Rank:
    """The actor of one rank. It imports `Learner` and has one."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._learner: Learner | None = None
        self._store: Any = None

    def prepare(self) -> int:
        """Import the libraries. Returns the process id."""
        processes.prepare_actor(f"learner-{self._rank}")
        import nemo_ada.cpu.learner.rank  # noqa: F401

        return os.getpid()

    def listen(self, timeout_s: float) -> int:
        """Open the rendezvous on a port that the system picks. Returns the port."""
        self._store = _store(0, True, timeout_s)
        return int(self._store.port)

    def start(self, port: int, config: LearnerConfig, weights: str | None) -> None:
        """Join the world and build this rank's share of the model. An earlier learner of this process is closed."""
        from nemo_ada.cpu.learner.rank import Learner

        if self._learner is not None:
            self._learner.close()
            self._learner = None
        store = self._store if self._rank == 0 else _store(port, False, config.start_timeout_s)
        self._learner = Learner(config, self._rank, store, weights)

    def call(self, method: str, *args: Any) -> Any:
        """Run a method of the learner."""
        return getattr(self._learner, method)(*args)

    def weights(self) -> tuple[None, Any]:
        """Returns (None, weights) as two Ray objects.

        Waiting for the first shows that the call ended, without fetching the weights.
        """
        return None, self.call("weights")


def _store(port: int, master: bool, timeout_s: float) -> Any:
    """Return the rendezvous of the ranks. The master opens it, and the others connect to `port`."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    listening: dict[str, int] = {}
    if master:  # without a socket of ours, TCPStore would listen on every interface
        server = socket.create_server((LOOPBACK, 0))
        port, listening = server.getsockname()[1], {"master_listen_fd": server.detach()}
    return TCPStore(LOOPBACK, port, None, master, timedelta(seconds=timeout_s), wait_for_workers=False, **listening)


class LearnerGroup:
    """A learner of `config.world_size` ranks on this machine. Ray must run already. It is also a context manager.

    Every method that calls the ranks raises these errors, too.

    Attributes:
        config: Settings of the learner.

    Raises:
        UserError: The weights are those of another model.
        InvariantError: A rank failed.
        ProcessLostError: A rank died.
        StallError: A rank did not answer in time.
    """

    def __init__(self, config: LearnerConfig, weights: str | Path | None = None) -> None:
        """Start the ranks and build the model.

        Args:
            config: Settings of the learner.
            weights: Hugging Face folder with config.json and model.safetensors. None makes a seeded random model, which
                is the same in every layout.
        """
        if not ray.is_initialized():
            raise InvariantError("LearnerGroup needs ray.init() first")
        self.config = config
        actor = ray.remote(_Rank).options(num_cpus=0, max_restarts=0, runtime_env={"env_vars": dict(RANK_ENVIRONMENT)})
        self._actors: list[Any] = [actor.remote(rank) for rank in range(config.world_size)]
        self._pids: list[int] = []
        self._closed = False
        self._start(config, weights)

    @property
    def processes(self) -> int:
        """Number of rank processes. `restart` can build a world of this size at most."""
        return len(self._actors)

    @property
    def closed(self) -> bool:
        """Whether the group has ended, by `shutdown` or by the loss of a rank."""
        return self._closed

    @property
    def pids(self) -> dict[str, int]:
        """Name -> process id of each rank. Empty before the group has started."""
        return {f"learner-{rank}": pid for rank, pid in enumerate(self._pids)}

    def restart(self, config: LearnerConfig, weights: str | Path | None = None) -> None:
        """Build a new model, optimizer and layout in the running processes, because new ones take seconds to start.

        State that was not saved is lost.

        Raises:
            InvariantError: The new layout has more ranks than there are processes.
        """
        if config.world_size > len(self._actors):
            raise InvariantError(
                f"a learner group of {len(self._actors)} processes cannot have {config.world_size} ranks"
            )
        self._live()
        self._start(config, weights)

    def _start(self, config: LearnerConfig, weights: str | Path | None) -> None:
        if weights is not None and not (Path(weights) / "config.json").is_file():
            raise UserError(f"no model in {weights}: a folder with config.json and model.safetensors is needed")
        self.config = config
        deadline, limit = time.monotonic() + config.start_timeout_s, config.start_timeout_s
        try:
            if not self._pids:
                self._pids = self._wait([actor.prepare.remote() for actor in self._actors], "start", deadline)
            actors = self._live()
            port = self._wait([actors[0].listen.remote(limit)], "open a port", deadline)[0]
            folder = None if weights is None else str(Path(weights).resolve())
            self._wait([actor.start.remote(port, config, folder) for actor in actors], "build the model", deadline)
        except BaseException:
            self.shutdown()
            raise
        log.debug("learner ready: %s ranks", config.world_size)

    def logprobs(self, tokens_RT: Any, length_R: Any, prompt_length_R: Any) -> Floats:
        """Log-probability of every response token given the tokens before it [R, T]. It is 0 elsewhere.

        See `TokenRows` for the arguments.
        """
        rows = TokenRows(tokens_RT, length_R, prompt_length_R)
        return self._collect("logprobs", rows, rows.tokens_RT.shape[1])

    def features(self, tokens_RT: Any, length_R: Any) -> Floats:
        """Mean over each row's tokens of the last layer's normalised hidden state [R, hidden_size]."""
        return self._collect("features", TokenRows(tokens_RT, length_R, length_R), self.config.shape.hidden_size)

    def train(self, batch: TrainBatch) -> dict[str, float]:
        """Take one optimizer step.

        Returns:
            The metrics loss, grad_norm (before clipping), lr, clip_fraction, mean_ratio, approx_kl and entropy.
        """
        self._check(batch)
        return self._agreed(self._call("train", batch))

    def supervised(self, rows: TokenRows) -> dict[str, float]:
        """Take one optimizer step on the negative log-likelihood of the responses.

        Returns:
            The metrics loss, grad_norm, lr and entropy.
        """
        self._check(rows)
        if not rows.response_tokens:
            raise InvariantError("a supervised step needs at least one response token")
        return self._agreed(self._call("supervised", rows))

    def weights(self) -> Any:
        """Ray reference to the model's weights. They are ready, as Hugging Face name -> float32 tensor on the CPU."""
        refs = [actor.weights.options(num_returns=2).remote() for actor in self._live()]
        self._wait([done for done, _ in refs], "weights")
        return refs[0][1]

    def save(self, folder: str | Path) -> None:
        """Write the learner's whole state into a folder, which is created if it is missing."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._call("save", str(Path(folder).resolve()))

    def load(self, folder: str | Path) -> None:
        """Restore a state that `save` wrote, in this or another layout. Raises UserError for a folder without one."""
        if not (Path(folder) / "learner.json").is_file():
            raise UserError(f"no learner state in {folder}")
        self._call("load", str(Path(folder).resolve()))

    def export_hf(self, folder: str | Path, extra_config: Mapping[str, Any] | None = None) -> None:
        """Write config.json and model.safetensors for transformers. `extra_config` is added to config.json."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._call("export_hf", str(Path(folder).resolve()), dict(extra_config or {}))

    def shutdown(self) -> None:
        """End the actors and wait until their processes are gone. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for actor in self._actors:
            with suppress(ray.exceptions.RayError):  # Ray may have lost its head. The processes are ended below
                ray.kill(actor, no_restart=True)
        if remaining := processes.end_processes(self._pids, 2 * _GRACE_S):
            raise InvariantError(f"learner processes did not end: {remaining}")

    def __enter__(self) -> LearnerGroup:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.shutdown()

    def _live(self) -> list[Any]:
        """Return the actors of the current world. Raises InvariantError after `shutdown`."""
        if self._closed:
            raise InvariantError("the learner group was shut down")
        return self._actors[: self.config.world_size]

    def _check(self, rows: TokenRows) -> None:
        """Raise InvariantError for a row that is longer than the model's positions."""
        longest, limit = int(rows.length_R.max(initial=0)), self.config.shape.max_position_embeddings
        if longest > limit:
            raise InvariantError(f"a row of {longest} tokens exceeds the model's max_position_embeddings={limit}")

    def _collect(self, method: str, rows: TokenRows, width: int) -> Floats:
        """Call a method of the ranks that gives each rank's rows. Returns the results of all rows [R, width]."""
        self._check(rows)
        result = np.zeros((len(rows.length_R), width), dtype=np.float32)
        for part in self._call(method, rows):
            if part is not None:
                result[part[0]] = part[1]
        return result

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all ranks. Returns their results in order."""
        actors = self._live()
        shared = [ray.put(arg) for arg in args]
        return self._wait([actor.call.remote(method, *shared) for actor in actors], method)

    def _wait(self, refs: list[Any], what: str, deadline: float | None = None) -> list[Any]:
        """Wait for the results of all ranks. Raises the errors of the class.

        The group ends when a rank dies, fails alone or is late. It goes on when all ranks refuse a call. Failures are
        collected for _GRACE_S after the first one, because a dying rank makes others fail before Ray reports it.

        Args:
            refs: One Ray reference per rank.
            what: The call, for error messages.
            deadline: Time of the monotonic clock. None takes the config's `call_timeout_s` from now.

        Returns:
            The results in the order of the ranks.
        """
        deadline = time.monotonic() + self.config.call_timeout_s if deadline is None else deadline
        pending, results = list(refs), {}
        failed: dict[int, ray.exceptions.RayError] = {}
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            rank = refs.index(ready[0])
            try:
                results[rank] = ray.get(ready[0])
            except ray.exceptions.RayError as error:
                failed[rank] = error
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        if failed:
            raise self._failure(what, failed, len(refs))
        if pending:
            late = ", ".join(self._name(refs.index(ref)) for ref in pending)
            stacks = "".join(f"; {line}" for line in processes.dump_stacks(self.pids))
            self.shutdown()
            raise StallError(f"learner {what}: no answer in time from {late}{stacks}")
        return [results[rank] for rank in range(len(refs))]

    def _failure(self, what: str, failed: dict[int, ray.exceptions.RayError], ranks: int) -> Exception:
        """Return the error to raise for the ranks that failed. The group ends, unless all `ranks` refused a call."""
        causes = {rank: getattr(error, "cause", None) for rank, error in failed.items()}
        died = [rank for rank, cause in causes.items() if cause is None]
        if len(failed) < ranks or died:
            self.shutdown()
        for cause in causes.values():
            if isinstance(cause, UserError):
                return cause
        lines = [f"{self._name(rank)} died" for rank in died]
        lines += [f"{self._name(rank)} failed with {causes[rank]!r}" for rank in sorted(causes) if rank not in died]
        failure = (ProcessLostError if died else InvariantError)(f"learner {what}: {'; '.join(lines)}")
        failure.__cause__ = failed[(died or list(failed))[0]]
        return failure

    def _name(self, rank: int) -> str:
        """Return a rank with its position, for error messages."""
        tensor = rank % self.config.tensor_parallel
        data = rank // self.config.tensor_parallel % self.config.data_parallel
        stage = rank // (self.config.tensor_parallel * self.config.data_parallel)
        return f"rank {rank} (tensor {tensor}, pipeline {stage}, data {data})"

    def _agreed(self, results: list[dict[str, float]]) -> dict[str, float]:
        """Return the metrics of the last rank. Raises InvariantError when gradient norms differ between ranks."""
        norms = {result["grad_norm"] for result in results}
        if len(norms) != 1:
            raise InvariantError(f"learner ranks disagree about the gradient norm: {sorted(norms)}")
        return results[-1]
