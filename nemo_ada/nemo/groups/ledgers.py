"""The budgets of the steps for which groups are drawn ahead."""

from __future__ import annotations

from collections.abc import Callable

from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import StepLedger
from nemo_ada.core.sampling.groups import GroupPool


class StepLedgers:
    """Has a ledger for each step that groups are drawn for. It is not safe to use from several threads at once."""

    def __init__(self, sampler: AdaSampler, prompts: int, version: Callable[[], int]) -> None:
        """Begin without ledgers.

        Args:
            sampler: it makes the ledgers.
            prompts: groups of a step.
            version: returns the version of the engine's weights. Steps below it have been trained.
        """
        self._sampler, self._prompts, self._version = sampler, prompts, version
        self._ledgers: dict[int, StepLedger] = {}

    def of(self, target: int) -> StepLedger:
        """Return the ledger of a step, and forget those of trained steps."""
        if target not in self._ledgers:
            version = self._version()
            self._ledgers = {step: ledger for step, ledger in self._ledgers.items() if step >= version}
            self._ledgers[target] = self._sampler.step_ledger(self._prompts)
        return self._ledgers[target]

    def restore(self, pool: GroupPool | None, target: int, number: int) -> None:
        """Book a group that an earlier attempt of the run has drawn.

        Args:
            pool: pool of the group. None for a prompt that is too long, or for a group that was given up.
            target: step that trains on the group.
            number: number of the group within its step.
        """
        issued = 0 if pool is None else int(pool.result.issued_P.sum())
        generated = 0 if pool is None else int(pool.result.generated_P.sum())
        self.of(target).restore(number, issued, generated)
