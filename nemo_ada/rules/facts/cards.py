"""The GPUs that `check` and `plan` know. A config names its card with the key `card:`; without it the card is an H100.

FLOP/s and bandwidth are peaks of NVIDIA's public data sheets: dense BF16, SXM modules. Memory is what CUDA reports,
which is less than the data sheet says. Sources:

- A100-80GB: data sheet of the A100 80GB SXM (312 TFLOP/s, 2,039 GB/s). 79.14 GiB are in an error message of a user.
- H100-80GB: data sheet of the H100 SXM (989 TFLOP/s, 3.35 TB/s).
- H200: data sheet of the H200 SXM (989 TFLOP/s, 4.8 TB/s, 141 GB).
- B200: data sheet of the DGX B200 (an eighth of 18 PFLOP/s in BF16, dense). pytorch/ao pull request 4002 measured
  178.35 GiB and a bus for 7.67 TB/s, where the data sheet says 180 GB and 8 TB/s.
- GB200: data sheet of the GB200 NVL72 (per superchip of two GPUs: 5 PFLOP/s in BF16, dense, 372 GB, 16 TB/s). Its
  memory in GiB is inferred: 186 less what a B200 keeps back.

`recipes/results/forecast.md` says which of them published step times were compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_ada.config.parsing import suggest_name
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError

KEY = "card"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU.

    Attributes:
        name: as a config names it.
        gib: memory that CUDA reports, GiB.
        flops: peak of dense BF16, FLOP per second.
        bandwidth: peak of its memory, bytes per second.
        capability: CUDA's compute capability.
        gpus_per_node: most GPUs of a node, where the maker fixes them. 8 otherwise.
    """

    name: str
    gib: float
    flops: float
    bandwidth: float
    capability: tuple[int, int]
    gpus_per_node: int = 8

    @property
    def fp8(self) -> bool:
        """Whether its tensor cores compute in FP8, as NeMo-RL uses it: Hopper and newer."""
        return self.capability >= (9, 0)

    @property
    def blackwell(self) -> bool:
        """Whether it is of the Blackwell generation."""
        return self.capability >= (10, 0)

    @property
    def architecture(self) -> str:
        """Its value for TORCH_CUDA_ARCH_LIST."""
        return ".".join(map(str, self.capability))


A100 = Card("A100-80GB", 79.1, 312e12, 2.04e12, (8, 0))
H100 = Card("H100-80GB", 79.6, 989e12, 3.35e12, (9, 0))
H200 = Card("H200", 139.8, 989e12, 4.8e12, (9, 0))
B200 = Card("B200", 178.3, 2250e12, 7.67e12, (10, 0))
GB200 = Card("GB200", 184.0, 2500e12, 8.0e12, (10, 0), gpus_per_node=4)
CARDS: Mapping[str, Card] = {card.name: card for card in (A100, H100, H200, B200, GB200)}
ALIASES = {"A100": A100, "H100": H100}


def choose_card(config: Mapping[str, Any]) -> Card:
    """Return the card that a config names. Raises UserError for an unknown name.

    Without a name it is the H100, and the GB200 for several nodes of four GPUs, as NeMo-RL's recipes for it have.
    """
    name, cluster = config.get(KEY), Values(config)
    if name is not None:
        return find_card(str(name))
    several = (cluster.number("cluster.num_nodes") or 1) > 1
    return GB200 if several and cluster.number("cluster.gpus_per_node") == GB200.gpus_per_node else H100


def find_card(name: str) -> Card:
    """Return the card of this name, in any case. Raises UserError."""
    known = {key.lower(): card for key, card in (*CARDS.items(), *ALIASES.items())}
    card = known.get(name.lower())
    if card is None:
        raise UserError(f"{KEY}={name}: unknown card; {suggest_name(name, tuple(CARDS), 'choices')}", key=KEY)
    return card


def find_card_of_device(device: str) -> Card | None:
    """Return the card of a name of CUDA, such as `NVIDIA H100 80GB HBM3`. None if it is not known."""
    words = device.upper().replace("-", " ").split()
    return next((card for name, card in {**ALIASES, **CARDS}.items() if name.upper() in words), None)
