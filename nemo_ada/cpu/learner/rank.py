"""One rank of the learner: Megatron-core's model, DDP wrapper, schedules and optimizer, on a CPU over gloo.

Every rank of the world constructs a `Learner`, and then calls the same methods in the same order. Each method gets the
whole batch, and a rank computes its data-parallel share of the rows. The import of this module imports Megatron. Only
`Learner()` changes the process: it installs the device shim and makes process groups.

State on disk has Hugging Face names and whole tensors, so a checkpoint loads into any layout. In the layout that wrote
it, the next step is the same to the bit.

R rows of the batch, B rows of a micro-batch, T tokens, H hidden width.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from safetensors.torch import save_file

from nemo_ada.cpu.learner import convert, shim
from nemo_ada.cpu.learner import megatron as setup
from nemo_ada.cpu.learner.batch import Floats, Ints, TokenRows, TrainBatch, deal
from nemo_ada.cpu.learner.loss import METRICS, compare_halves, compute_policy_loss, compute_supervised_loss
from nemo_ada.cpu.learner.micro import PackedMicro, PaddedMicro
from nemo_ada.cpu.learner.packing import deal_packed
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.learner.shape import PolicyShape, list_hf_shapes
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import read_json, write_atomically

_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "learner.json"
_MOMENTS, _RNG = ("exp_avg", "exp_avg_sq"), "torch_rng"

Sums = dict[str, torch.Tensor]
RowLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Ints], tuple[torch.Tensor, Sums]]


class Learner:
    """One rank of the learner. The module's docstring says how it must be called.

    Attributes:
        config: Settings of the learner.
        place: The rank's tensor and pipeline position.
        data_rank: The rank among the data-parallel ranks.
        last_stage: Whether the rank has the last pipeline stage.
        tensor_group: The rank's tensor-parallel process group.
        module: This rank's share of the model.
        model: The same in Megatron's DDP wrapper.
        optimizer: Megatron's optimizer.
        schedule: Learning-rate schedule, which also counts the optimizer steps.
        run_schedule: Megatron's pipeline schedule.

    Raises:
        UserError: The initial weights do not fit the shape.
    """

    def __init__(self, config: LearnerConfig, rank: int, store: dist.Store, weights: str | None = None) -> None:
        """Join the world and build this rank's share of the model.

        Args:
            config: Settings of the learner.
            rank: This process's rank in the world.
            store: Rendezvous of the ranks.
            weights: Hugging Face folder. None makes a seeded random model.
        """
        self.config = config
        setup.join(config, rank, store)
        self.place = convert.Place(
            parallel_state.get_tensor_model_parallel_rank(),
            config.tensor_parallel,
            parallel_state.get_pipeline_model_parallel_rank(),
            config.pipeline_parallel,
        )
        self.data_rank = parallel_state.get_data_parallel_rank()
        self.last_stage = parallel_state.is_pipeline_last_stage()
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        transformer = setup.make_transformer_config(config)
        with shim.pretend_cuda_methods():
            self.module = setup.build_model(config, transformer)
        self._set_weights(self._initial(weights))
        self.model = setup.wrap(self.module, transformer)
        self.optimizer = setup.build_optimizer(config, self.model)
        self.schedule = setup.build_schedule(config, self.optimizer)
        self.run_schedule = get_forward_backward_func()

    def close(self) -> None:
        """Leave the world, so that another `Learner` can be built in this process (collective).

        The attributes are removed, because they would keep the process groups alive. The 50 threads of these wake up
        100 times a second.
        """
        setup.leave()
        self.__dict__.clear()
        gc.collect()

    def logprobs(self, rows: TokenRows) -> tuple[Ints, Floats] | None:
        """Log-probabilities of the response tokens in this rank's share of the rows.

        Returns:
            Row numbers, and the log-probabilities [those rows, T], which are 0 outside responses. None when another
            rank answers for the same rows.
        """
        parts: list[Floats] = []

        def keep(logprob: torch.Tensor, _entropy: torch.Tensor, mask: torch.Tensor, row_B: Ints) -> tuple[Any, Sums]:
            part = np.zeros((len(row_B), rows.tokens_RT.shape[1]), dtype=np.float32)
            part[:, 1 : mask.shape[1] + 1] = torch.where(mask, logprob, 0).numpy()
            parts.append(part)
            return logprob.sum(), {}

        return self._evaluate(rows, keep, parts)

    def features(self, rows: TokenRows) -> tuple[Ints, Floats] | None:
        """Mean over each row's tokens of the hidden state behind the last layer and norm.

        The mean predicts pass rates far better than the state at the last token alone. Their correlations were .84 and
        .64 after 8 steps of 32 prompts of mini_sudoku (recipes/benchmarks/value_features.py).

        Returns:
            Row numbers and the means [those rows, H]. None when another rank answers for the same rows.
        """
        parts: list[Floats] = []
        hidden: list[torch.Tensor] = []

        def keep(logprob: torch.Tensor, _entropy: torch.Tensor, _mask: torch.Tensor, row_B: Ints) -> tuple[Any, Sums]:
            parts.append(self._micro(rows, row_B).row_means(hidden.pop()).numpy())
            return logprob.sum(), {}

        hook = self.module.decoder.register_forward_hook(lambda _module, _inputs, output: hidden.append(output))
        try:
            return self._evaluate(rows, keep, parts)
        finally:
            hook.remove()

    def _evaluate(self, rows: TokenRows, keep: RowLoss, parts: list[Floats]) -> tuple[Ints, Floats] | None:
        """Run this rank's rows forward. `keep` appends one array per micro-batch to `parts`."""
        mine = self._deal(rows, np.arange(len(rows.length_R)))
        with torch.no_grad():
            self._pass(rows, mine, keep, forward_only=True)
        if not (mine and self.last_stage and self.place.tensor_rank == 0):
            return None
        return np.concatenate(mine), np.concatenate(parts)

    def train(self, batch: TrainBatch) -> dict[str, float]:
        """Take one optimizer step on the clipped policy-gradient loss. Rows of weight 0 are not computed."""

        def of_rows(logprob: torch.Tensor, entropy: torch.Tensor, mask: torch.Tensor, rows: Ints) -> Any:
            return compute_policy_loss(
                self.config.loss,
                (logprob, entropy),
                torch.from_numpy(batch.old_logprob_RT[rows, 1 : mask.shape[1] + 1]),
                torch.from_numpy(batch.advantage_R[rows]),
                torch.from_numpy(batch.weight_R[rows]),
                mask,
                batch.denominator,
            )

        return self._step(batch, np.flatnonzero(batch.weight_R), of_rows, METRICS)

    def supervised(self, rows: TokenRows) -> dict[str, float]:
        """Take one optimizer step on the mean negative log-likelihood of the response tokens."""

        def of_rows(logprob: torch.Tensor, entropy: torch.Tensor, mask: torch.Tensor, _rows: Ints) -> Any:
            return compute_supervised_loss(logprob, entropy, mask, rows.response_tokens)

        return self._step(rows, np.arange(len(rows.length_R)), of_rows, ("tokens", "loss", "entropy"))

    def _deal(self, rows: TokenRows, row_R: Ints) -> list[Ints]:
        """This rank's micro-batches of the given rows."""
        config = self.config
        if config.packed_tokens is not None:
            return deal_packed(rows, row_R, config.data_parallel, config.packed_tokens)[self.data_rank]
        return deal(rows.length_R, row_R, config.data_parallel, config.micro_batch_size)[self.data_rank]

    def _step(
        self,
        rows: TokenRows,
        row_R: Ints,
        loss: RowLoss,
        names: tuple[str, ...],
    ) -> dict[str, float]:
        """Take one optimizer step. Returns the gradient norm and lr, and on the last stage the named metrics, too."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums, measured = self._gradient(rows, row_R, loss)
        with shim.pretend_cuda_methods():
            norm = self._apply()
        metrics = {"grad_norm": norm, "lr": float(self.optimizer.param_groups[0]["lr"])} | measured
        if not self.last_stage:
            return metrics
        total = torch.stack([torch.as_tensor(sum(s[name] for s in sums), dtype=torch.float32) for name in names])
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        values = dict(zip(names, total.tolist(), strict=True))
        tokens = values.pop("tokens")
        metrics["loss"] = values.pop("loss")
        return metrics | {name: value / max(tokens, 1.0) for name, value in values.items()}

    def _gradient(self, rows: TokenRows, row_R: Ints, loss: RowLoss) -> tuple[list[Sums], dict[str, float]]:
        """Compute the gradient of the rows.

        Returns:
            The sums of each micro-batch. With `halves` also what `compare_halves` says of the halves of a `TrainBatch`,
            where both have a gradient.
        """
        if not (self.config.halves and isinstance(rows, TrainBatch) and rows.first_half_R is not None):
            return self._pass(rows, self._deal(rows, row_R), loss, forward_only=False), {}
        first_R, second_R = row_R[rows.first_half_R[row_R]], row_R[~rows.first_half_R[row_R]]
        sums = self._pass(rows, self._deal(rows, first_R), loss, forward_only=False)
        first = torch.cat([parameter.main_grad.flatten() for parameter in self.module.parameters()])
        sums += self._pass(rows, self._deal(rows, second_R), loss, forward_only=False)
        # The gradients of both halves add up in Megatron's buffers, so the second one is what has been added since.
        second = torch.cat([parameter.main_grad.flatten() for parameter in self.module.parameters()]).sub_(first)
        tokens_R = rows.length_R - rows.prompt_length_R
        tokens = float(tokens_R[first_R].sum()), float(tokens_R[second_R].sum())
        # The loss divides by the step's denominator, and the comparison by each half's own tokens.
        return sums, compare_halves(first.mul_(rows.denominator), second.mul_(rows.denominator), tokens)

    def _apply(self) -> float:
        """Clip the gradient and update the weights. Returns the norm before clipping.

        Raises:
            InvariantError: The norm is not finite. Nothing has changed then.
        """
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(norm):
            raise InvariantError(f"the gradient norm is {norm} at optimizer step {self.schedule.num_steps + 1}")
        self.schedule.step(1)
        ok, norm_again, _ = self.optimizer.step()  # it computes the norm anew, to clip by it
        if not ok or norm_again != norm:
            raise InvariantError(f"Megatron's optimizer refused a step (norm {norm}, {norm_again})")
        return norm

    def _pass(self, rows: TokenRows, mine: list[Ints], loss: RowLoss, *, forward_only: bool) -> list[Sums]:
        """Run Megatron's schedule over this rank's micro-batches. Returns each one's sums on the last stage."""
        micros: list[Ints] = mine or [np.empty(0, np.int64)]  # a rank without rows computes one token

        def forward(data: Iterator[Ints], model: torch.nn.Module) -> Any:
            row_B = next(data)
            micro = self._micro(rows, row_B)
            return micro.run(model, self.module), partial(self._row_loss, loss, micro, row_B)

        return self.run_schedule(
            forward_step_func=forward,
            data_iterator=iter(micros),
            model=[self.model],
            num_microbatches=len(micros),
            seq_length=rows.tokens_RT.shape[1],
            micro_batch_size=self.config.micro_batch_size,
            forward_only=forward_only,
        )

    def _micro(self, rows: TokenRows, row_B: Ints) -> PaddedMicro | PackedMicro:
        """Return the micro-batch of these rows."""
        if self.config.packed_tokens is None:
            return PaddedMicro(rows, row_B)
        return PackedMicro(rows, row_B)

    def _row_loss(
        self, loss: RowLoss, micro: PaddedMicro | PackedMicro, row_B: Ints, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Sums]:
        """Loss, number of tokens (unused) and sums of a micro-batch, as Megatron's schedule wants them."""
        scaled = logits if self.config.temperature == 1.0 else logits / self.config.temperature
        logprob, entropy = micro.logprobs(scaled, self.tensor_group)
        if not len(row_B):
            return logprob.sum() * 0.0, torch.zeros((), dtype=torch.int), dict.fromkeys(METRICS, torch.zeros(()))
        value, sums = loss(logprob, entropy, micro.mask_BT, row_B)
        return value, torch.zeros((), dtype=torch.int), sums

    def weights(self) -> convert.Weights | None:
        """Return the whole model with Hugging Face names on rank 0, and None on other ranks (collective)."""
        return self._gather({name: tensor.detach() for name, tensor in self.module.named_parameters()})

    def save(self, folder: str) -> None:
        """Write model, Adam's moments, the step and torch's generator into an existing folder (collective)."""
        moments = [
            self._gather({name: self._adam(parameter)[moment] for name, parameter in self.module.named_parameters()})
            for moment in _MOMENTS
        ]
        weights = self.weights()
        if weights is not None:
            save_file(weights, Path(folder) / _MODEL, {"format": "pt"})
            adam = {_RNG: torch.get_rng_state()}
            for moment, part in zip(_MOMENTS, moments, strict=True):
                adam |= {f"{moment}.{name}": tensor for name, tensor in (part or {}).items()}
            save_file(adam, Path(folder) / _OPTIMIZER)
            state = {"step": self.schedule.num_steps, "shape": self.config.shape.hf_config()}
            write_atomically(Path(folder) / _STATE, json.dumps(state, indent=1))
        dist.barrier()

    def load(self, folder: str) -> None:
        """Restore a state that `save` wrote, in this or another layout. The optimizer's settings are the config's.

        Everything is read and checked before anything changes.

        Raises:
            UserError: A file cannot be used.
        """
        step, shape = read_learner_state(Path(folder) / _STATE)
        self._check_shape(shape, folder)
        shapes = list_hf_shapes(self.config.shape)
        weights = convert.read_tensors(Path(folder) / _MODEL, shapes, torch.float32)
        named = {f"{moment}.{name}": size for moment in _MOMENTS for name, size in shapes.items()}
        moments = convert.read_tensors(Path(folder) / _OPTIMIZER, named, torch.float32)
        rng = convert.read_tensors(Path(folder) / _OPTIMIZER, {_RNG: tuple(torch.get_rng_state().shape)}, torch.uint8)[
            _RNG
        ]
        self._set_weights(weights.__getitem__)
        for moment in _MOMENTS:
            whole = {name: moments[f"{moment}.{name}"] for name in shapes}
            local = convert.shard(self.config.shape, whole.__getitem__, self.place)
            for name, parameter in self.module.named_parameters():
                self._adam(parameter)[moment].copy_(local[name])
        torch.set_rng_state(rng)
        for parameter in self.module.parameters():
            self._adam(parameter)["step"] = torch.tensor(float(step))
        self.schedule.num_steps = step
        self.schedule.step(0)

    def export_hf(self, folder: str, extra_config: Mapping[str, Any]) -> None:
        """Write `config.json` and `model.safetensors` for transformers into an existing folder (collective)."""
        weights = self.weights()
        if weights is not None:
            config = self.config.shape.hf_config() | dict(extra_config)
            dtype = getattr(torch, str(config["torch_dtype"]))
            whole = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
            save_file(whole, Path(folder) / _MODEL, {"format": "pt"})
            write_atomically(Path(folder) / "config.json", json.dumps(config, indent=1))
        dist.barrier()

    def _initial(self, weights: str | None) -> Callable[[str], torch.Tensor]:
        """Return a function that returns the initial tensors by Hugging Face name."""
        if weights is None:
            return convert.make_random_weights(self.config.shape, self.config.seed).__getitem__
        self._check_shape(PolicyShape.read(Path(weights)), weights)
        return convert.read_model(Path(weights), list_hf_shapes(self.config.shape)).__getitem__

    def _check_shape(self, shape: PolicyShape, folder: str) -> None:
        """Raise UserError when the weights in a folder have another shape than the config's."""
        given, wanted = asdict(shape), asdict(self.config.shape)
        differing = [
            f"{name} {given[name]} instead of {wanted[name]}"
            for name in wanted
            if given[name] != wanted[name] and name != "initializer_range"
        ]
        if differing:
            raise UserError(f"the weights in {folder} are of another model: {'; '.join(differing)}")

    def _set_weights(self, get: Callable[[str], torch.Tensor]) -> None:
        """Copy this rank's share of whole tensors, which `get` returns by Hugging Face name, into the model."""
        local = convert.shard(self.config.shape, get, self.place)
        parameters = dict(self.module.named_parameters())
        if local.keys() != parameters.keys():
            raise InvariantError(f"Megatron's parameters are not those expected: {local.keys() ^ parameters.keys()}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(local[name])

    def _gather(self, local: convert.Weights) -> convert.Weights | None:
        """Merge the tensors of all ranks on rank 0. Data-parallel copies are not sent."""
        if self.config.world_size == 1:
            return convert.merge(self.config.shape, [[local]])
        mine = (self.place.pipeline_rank, self.place.tensor_rank, local) if self.data_rank == 0 else None
        parts: list[Any] | None = [None] * self.config.world_size if dist.get_rank() == 0 else None
        dist.gather_object(mine, parts)
        if parts is None:
            return None
        shard_at = {(stage, rank): tensors for stage, rank, tensors in filter(None, parts)}
        stages, ranks = range(self.place.pipeline_size), range(self.place.tensor_size)
        return convert.merge(self.config.shape, [[shard_at[stage, rank] for rank in ranks] for stage in stages])

    def _adam(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """Adam's state of a parameter. A new one is as torch would create it at its first step."""
        for optimizer in self.optimizer.chained_optimizers:
            state = optimizer.optimizer.state[parameter]
            if not state:
                state.update(step=torch.tensor(0.0), **{m: torch.zeros_like(parameter) for m in _MOMENTS})
            return state
        raise InvariantError("Megatron built no optimizer")


def read_learner_state(path: Path) -> tuple[int, PolicyShape]:
    """Read the optimizer step and the model's shape that `save` wrote. Raises UserError for a file without them."""
    content = read_json(path)
    step, shape = content.get("step"), content.get("shape")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0 or not isinstance(shape, Mapping):
        raise UserError(f"{path} holds no learner's state (its step or shape is missing or wrong)")
    return step, PolicyShape.from_hf_config(shape)
