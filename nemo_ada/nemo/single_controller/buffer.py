"""NeMo-RL's replay buffer, with the groups that were drawn beside it and with rows outside the loss.

The buffer writes rows into the data plane and keeps their names. A pool has more responses than rows, and its length
differs. So it stays here, in the controller's process, under the name of its group. It is saved with the buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
from nemo_rl.experience.payload import pack_payload, record_to_train_batch

from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.errors import FailedResponsesError, InvariantError, UserError
from nemo_ada.nemo.groups.step import GROUP
from nemo_ada.nemo.single_controller.rollout import DrawnGroup

DRAWN = "ada_groups"  # key of a checkpoint of the buffer


class AdaBuffer(TQReplayBuffer):  # type: ignore[misc]
    """NeMo-RL's buffer for groups of Reinforce-Ada.

    Attributes:
        drawn: the group of each committed slot, by its group_id.
        restored: called with every group that a checkpoint brings back.
        evicted: called with the ticket of every group that is thrown away.
    """

    drawn: dict[str, DrawnGroup]
    restored: Callable[[DrawnGroup], None]
    evicted: Callable[[int], None]

    async def commit(self, group_id: str, record: PromptGroupRecord, *args: Any, **kwargs: Any) -> Any:
        """Write the rows of a group. Rows outside the loss get the sample mask 0.

        Raises:
            InvariantError: the group was not drawn by Reinforce-Ada.
        """
        drawn = record.metadata.get(GROUP)
        if drawn is None:
            raise InvariantError(f"group {group_id} reached the buffer without its pool: it is not Reinforce-Ada's")
        self.drawn[group_id] = drawn
        try:
            return await super().commit(group_id, record, *args, **kwargs)
        except BaseException:
            self.drawn.pop(group_id, None)
            raise

    async def _call_dp(self, method_name: str, **kwargs: Any) -> Any:
        """Call the data plane. NeMo-RL's `commit` writes all rows into the loss, and it calls this to do so."""
        if method_name == "put_samples":
            drawn = self.drawn.get(group_of(kwargs["sample_ids"][0]))
            if drawn is not None:
                kwargs["fields"]["sample_mask"] = drawn.mask_R.clone()
        return await super()._call_dp(method_name, **kwargs)

    async def remove(self, idxs: list[int], remove_in_dp: bool) -> int:
        """Drop slots. The prompts of groups that leave the data plane, too, were not trained on."""
        if remove_in_dp:
            for name in [self._group_ids[place] for place in idxs]:
                drawn = self.drawn.pop(name, None)
                if drawn is not None:
                    self.evicted(drawn.ticket)
        return int(await super().remove(idxs, remove_in_dp))

    async def take(self, meta: Any) -> list[DrawnGroup]:
        """Take the groups of a step, in the order of its rows.

        NeMo-RL's update needs a row in the loss. If the step has none, a whole response takes the place of the first
        row of its group. Its advantage is 0, so it changes nothing.

        Args:
            meta: NeMo-RL's KVBatchMeta of the step. Its lengths change with that row.

        Raises:
            UserError: all prompts of the step are too long.
            FailedResponsesError: no response of the step has a label.
        """
        names = list(dict.fromkeys(group_of(sample) for sample in meta.sample_ids))
        groups = [self.drawn[name] for name in names]
        if not any(bool((one.mask_R > 0).any()) for one in groups):
            place = next((place for place, one in enumerate(groups) if one.group["spare"] is not None), None)
            if place is None:
                _raise_without_rows([one.group["pool"] for one in groups if one.group["pool"] is not None])
            await self._revive(meta, meta.sample_ids.index(f"{names[place]}_g0"), groups[place])
            groups[place] = replace(groups[place], revived=True)
        for name in names:
            del self.drawn[name]
        return groups

    async def _revive(self, meta: Any, row: int, drawn: DrawnGroup) -> None:
        """Write a whole response into a row of the data plane."""
        log, length = drawn.group["spare"]
        reward = float(drawn.columns["ada_reward"][0])
        record = PromptGroupRecord(
            prompt_idx=0,
            prompt=[{**log[0], "token_ids": log[0]["token_ids"][:length]}],
            extra_env_info=None,
            metadata={},
            completions=[Completion([dict(message) for message in log], None, False, reward)],
            rollout_metrics={},
        )
        train_batch = record_to_train_batch(record, pad_value_dict=self._pad_value_dict)
        _, fields, _ = pack_payload(train_batch, weight_version=0, group_id="")
        sample, tag = meta.sample_ids[row], meta.tags[row]
        await super()._call_dp(
            "put_samples", sample_ids=[sample], partition_id=self._partition_id, fields=fields, tags=[dict(tag)]
        )
        meta.sequence_lengths[row] = int(train_batch["input_lengths"][0])

    async def state_dict(self, *, saved_capacity: int) -> dict[str, Any]:
        """Return NeMo-RL's state with the groups of its slots."""
        state: dict[str, Any] = await super().state_dict(saved_capacity=saved_capacity)
        return state | {DRAWN: {group["group_id"]: self.drawn[group["group_id"]] for group in state["groups"]}}

    async def load_state_dict(self, state: dict[str, Any], **kwargs: Any) -> int:
        """Continue from a checkpoint. NeMo-RL may drop groups.

        Raises:
            UserError: the checkpoint has groups that were drawn without Reinforce-Ada.
        """
        missing = [group["group_id"] for group in state["groups"] if group["group_id"] not in state.get(DRAWN, {})]
        if missing:
            raise UserError(
                "the checkpoint's replay_buffer.pt has groups that were drawn without Reinforce-Ada; remove the file "
                "to draw their prompts again"
            )
        count = int(await super().load_state_dict(state, **kwargs))
        for name in self._group_ids:
            self.drawn[name] = state[DRAWN][name]
            self.restored(self.drawn[name])
        return count


def _raise_without_rows(pools: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Say why a step has no response. `pools` are those of its prompts, as dictionaries."""
    if not pools:
        raise UserError("all prompts of a step are longer than data.max_input_seq_length; raise it")
    causes = Counter[str]()
    for pool in pools:
        causes.update(GroupPool.from_dict(pool).result.failures)
    found = ", ".join(f"{cause}: {count}" for cause, count in causes.most_common())
    raise FailedResponsesError(
        f"no response to the {len(pools)} prompts of a step has a label ({found or 'all were given up'}): repair the "
        "verifier or engine that these causes name, or raise reinforce_ada.budget.max_group_seconds"
    )


def group_of(sample_id: str) -> str:
    """Return the group of a row, from the row's name in the data plane."""
    return sample_id.rpartition("_g")[0]
