"""A data loader that chooses each batch from several (`reinforce_ada.candidate_prompts`).

NeMo-RL's loop gets a loader with fewer batches per epoch, so its counters of steps and epochs stay right. The state is
that of the loader inside. It is read between steps, when no batch waits for a choice. So a resumed run chooses among
the same candidates. The last batches of an epoch are skipped when they are too few for a choice. NeMo-RL shuffles each
epoch anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class CandidateLoader:
    """Stands in for NeMo-RL's StatefulDataLoader."""

    def __init__(self, loader: Any, batches_per_choice: int, choose: Callable[[Sequence[Any]], Any]) -> None:
        """Wrap a loader.

        Args:
            loader: NeMo-RL's data loader.
            batches_per_choice: number of batches from which one batch is chosen.
            choose: it gets so many batches and returns one batch of the same size.
        """
        self._loader, self._batches_per_choice, self._choose = loader, batches_per_choice, choose

    def __len__(self) -> int:
        return len(self._loader) // self._batches_per_choice

    def __iter__(self) -> Iterator[Any]:
        waiting: list[Any] = []
        for batch in self._loader:
            waiting.append(batch)
            if len(waiting) == self._batches_per_choice:
                yield self._choose(waiting)
                waiting = []

    def state_dict(self) -> Any:
        """Return the state of the loader inside."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue where `state_dict` was read."""
        self._loader.load_state_dict(state)
