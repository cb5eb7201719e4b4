"""LoRA on Megatron: what `policy.megatron_cfg.peft` asks for, and how many parameters its adapters have.

An adapter of a linear layer with `i` inputs and `o` outputs has a matrix A of `dim x i` and a matrix B of `o x dim`.
Megatron-Bridge splits both over the tensor-parallel ranks. The experts of one GPU share an adapter.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_ada.rules.facts.models import ModelShape

LAYERS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Names of the linear layers of a transformer layer in Megatron."""
OUTPUT = "output_layer"


@dataclass(frozen=True, slots=True)
class Lora:
    """The section `peft`.

    Attributes:
        dim: rank of the adapters.
        targets: names or patterns of the layers that get one. Empty for every linear layer, the output layer included.
        excluded: names or patterns of layers that get none.
    """

    dim: int
    targets: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Lora | None:
        """Read it from the section, None where it is off. A rule judges the values, so this reads what it can."""
        if not section.get("enabled", False):
            return None
        dim = section.get("dim")
        names = {
            key: tuple(map(str, value)) if isinstance(value := section.get(key), list | tuple) else ()
            for key in ("target_modules", "exclude_modules")
        }
        whole = isinstance(dim, int) and not isinstance(dim, bool) and dim > 0
        return cls(dim if whole else 1, names["target_modules"], names["exclude_modules"])  # type: ignore[arg-type]

    def adapts(self, layer: str) -> bool:
        """Return whether layers of this name get an adapter. A pattern with a path counts where its last part fits."""
        if self.targets:
            return any(_fits(target, layer) for target in self.targets)
        return not any(_fits(name, layer) for name in self.excluded)

    @property
    def layers(self) -> int:
        """Number of adapters of a transformer layer."""
        return sum(map(self.adapts, LAYERS))

    def parameters(self, shape: ModelShape, layers: int) -> int:
        """Return the parameters of the adapters of so many transformer layers, before TP divides them."""
        widths = {
            "linear_qkv": shape.hidden + shape.query_width + 2 * shape.kv_width,
            "linear_proj": shape.query_width + shape.hidden,
            "linear_fc1": shape.hidden + 2 * shape.ffn,
            "linear_fc2": shape.ffn + shape.hidden,
        }
        return layers * self.dim * sum(width for name, width in widths.items() if self.adapts(name))


def _fits(pattern: str, layer: str) -> bool:
    return fnmatch.fnmatch(layer, pattern.rpartition(".")[2])
