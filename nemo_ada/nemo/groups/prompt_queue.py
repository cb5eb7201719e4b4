"""The prompts of asynchronous training, and how a resumed run continues with them.

NeMo-RL's collector reads batches from the data loader ahead of the training step and stops after one epoch. When it
completes a step, it uses a few prompts of a batch and drops the others. A checkpoint has the loader's state of that
moment, so a resumed run loses the prompts that were in flight.

Here every prompt has a ticket. It is the prompt's position in endless epochs, whose order depends on the seed. The
replay buffer keeps the tickets of the groups that were delivered to it (`Delivered`). A resumed run skips them. So each
prompt of an epoch is trained on once. Groups that were in flight are drawn again. Groups in the buffer are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nemo_ada.core.prompts.order import PromptOrder
from nemo_ada.errors import UserError

TICKET, REDRAWN = "ada_ticket", "ada_redrawn"
LOADER_FILE = "train_dataloader.pt"


@dataclass
class Delivered:
    """A set of tickets.

    Attributes:
        low: every ticket below this number is in the set.
        above: further tickets of the set.
    """

    low: int = 0
    above: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, saved: Mapping[str, Any] | None) -> Delivered:
        """Restore the result of `as_dict`, which is None without a checkpoint."""
        return cls(saved["low"], set(saved["above"])) if saved else cls()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as numbers."""
        return {"low": self.low, "above": sorted(self.above)}

    def add(self, tickets: Iterable[int]) -> None:
        """Add tickets to the set."""
        self.above.update(ticket for ticket in tickets if ticket >= self.low)
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1

    def remove(self, tickets: Iterable[int]) -> None:
        """Remove tickets from the set."""
        out = set(tickets)
        low = min(out, default=self.low)
        self.above = (self.above | set(range(low, self.low))) - out
        self.low = min(low, self.low)

    def union(self, other: Delivered) -> Delivered:
        """Return the union of two sets."""
        both = Delivered(max(self.low, other.low))
        both.add(self.above | other.above)
        return both

    def __contains__(self, ticket: int) -> bool:
        return ticket < self.low or ticket in self.above


class PromptQueue:
    """Yields batches of prompts without end, with a ticket per prompt. It is safe to use from many threads.

    Attributes:
        size: prompts per batch.
        error: the error that ended the iteration. NeMo-RL's collector only prints it.
    """

    def __init__(
        self,
        loader: Any,
        *,
        size: int,
        seed: int | None,
        delivered: Delivered,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a queue.

        Args:
            loader: NeMo-RL's data loader. Only its data set and its collation are used.
            size: prompts per batch.
            seed: seed of the order. None keeps the order of the data.
            delivered: tickets to skip.
            state: the queue's state of the run that is resumed.

        Raises:
            UserError: the data set is empty.
        """
        loader = getattr(loader, "dataloader", loader)  # v0.8.0 wraps it so that it has no end (pull request 3248)
        self._data: Any = loader.dataset
        self._collate: Callable[[list[Any]], Any] = loader.collate_fn
        self.size, self._shuffled = size, seed is not None
        self._order = PromptOrder(len(self._data), seed or 0, where="data.train")
        self._delivered = delivered
        self._interrupted: set[int] = set()
        if state is not None:
            self._interrupted = set(state["started"])
            self._delivered = delivered.union(Delivered.of(state))
        self._next = self._delivered.low
        self._returned: list[int] = []
        self._started: set[int] = set()  # tickets in flight
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        while True:
            tickets = self._take()
            try:
                batch = self._collate([self._data[self._find_row(ticket)] for ticket in tickets])
            except Exception as error:
                self.error = error
                raise
            batch[TICKET] = torch.tensor(tickets, dtype=torch.int64)
            batch[REDRAWN] = torch.tensor([ticket in self._interrupted for ticket in tickets])
            yield batch

    def _find_row(self, ticket: int) -> int:
        return int(self._order.at(ticket, 1)[0]) if self._shuffled else ticket % self._order.count

    def _take(self) -> list[int]:
        with self._lock:
            taken, self._returned = self._returned[: self.size], self._returned[self.size :]
            while len(taken) < self.size:
                if self._next not in self._delivered:
                    taken.append(self._next)
                self._next += 1
            return taken

    def put_back(self, tickets: Iterable[int]) -> None:
        """Return the prompts that were not used. They come first in the next batch."""
        with self._lock:
            self._returned = [*tickets, *self._returned]

    def begin(self, ticket: int) -> None:
        """Note that the group of this prompt is drawn now."""
        with self._lock:
            self._started.add(ticket)

    def done(self, ticket: int) -> None:
        """Note that the group of this prompt is in the buffer."""
        with self._lock:
            self._delivered.add([ticket])
            self._started.discard(ticket)

    def state_dict(self) -> dict[str, Any]:
        """Return the part of a checkpoint that the buffer's tickets do not cover."""
        with self._lock:
            return self._delivered.as_dict() | {"started": sorted(self._started)}


def read_saved_queue(checkpoint: str | Path | None) -> dict[str, Any] | None:
    """Read the queue's state from a checkpoint of NeMo-RL. None without one.

    Raises:
        UserError: the checkpoint was made by another loop.
    """
    path = None if checkpoint is None else Path(checkpoint) / LOADER_FILE
    if path is None or not path.exists():
        return None
    state = torch.load(path, weights_only=True)
    if "started" not in state:
        raise UserError(
            f"{checkpoint} was not made by asynchronous Reinforce-Ada, so nobody knows which prompts it has seen; name "
            "another checkpointing.checkpoint_dir"
        )
    return dict(state)
