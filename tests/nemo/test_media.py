"""Prompts with images, and responses with the experts of their tokens, through NeMo-RL's own batches and flattening.

1. Images repeat per response inside messages. Two questions about two images are two prompts.
2. A row outside the loss keeps its images and every token that stands for a part of them.
3. Rows keep the experts that NeMo-RL's rollouts report, those of their prompts as well.
"""

from __future__ import annotations

import pytest
import torch

from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.response import ROUTES, make_placeholder, read

pytestmark = pytest.mark.nemo_rl

GROUP = 4


@pytest.fixture
def batches(harness):
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    return BatchedDataDict


def picture(value):
    from nemo_rl.data.multimodal_utils import PackedTensor

    return PackedTensor(torch.full((3, 2), float(value)), dim_to_pack=0)


def message(role, tokens, **more):
    return {"role": role, "content": "x", "token_ids": torch.tensor(tokens), **more}


def answer(*tokens, **more):
    return message("assistant", list(tokens), generation_logprobs=torch.zeros(len(tokens)), **more)


def flat(logs):
    from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message

    return batched_message_log_to_flat_message(logs, pad_value_dict={"token_ids": 0})


def prompts_of(batches, *pictures):
    logs = [[message("user", [5, 6, 7], pixel_values=picture(value))] for value in pictures]
    count = len(logs)
    batch = batches(message_log=logs, length=torch.full((count,), 3), loss_multiplier=torch.ones(count),
                    task_name=["vlm"] * count, extra_env_info=[{}] * count, idx=list(range(count)))  # fmt: skip
    return Prompts(batch.repeat_interleave(GROUP), GROUP)


def test_images_repeat_per_response_and_are_a_part_of_the_prompt_s_identity(batches):
    prompts = prompts_of(batches, 1, 2, 1)
    assert prompts.ids[0] == prompts.ids[2] != prompts.ids[1]
    rows = prompts.rows([0, 0, 1])
    images, _ = flat(rows["message_log"])
    assert images["pixel_values"].as_tensor().shape == (9, 2)
    rows["message_log"][0].append(answer(9))
    assert len(rows["message_log"][1]) == 1, "rows share no message"


def test_a_row_outside_the_loss_keeps_its_images_whole(batches):
    (prompt,) = prompts_of(batches, 1).logs
    logs = [
        [*map(dict, prompt), answer(8, 9)],
        make_placeholder(prompt, [answer(8, 9)]),
        make_placeholder(prompt),
    ]
    assert [sum(len(one["token_ids"]) for one in log) for log in logs] == [5, 5, 4]
    images, lengths = flat(logs)
    assert lengths.tolist() == [5, 5, 4] and images["pixel_values"].as_tensor().shape == (9, 2)


def test_a_column_of_images_is_refused_because_nemo_rl_cannot_repeat_it(batches):
    from nemo_ada.errors import UserError

    batch = batches(message_log=[[message("user", [5])]], loss_multiplier=torch.ones(1), pixels=picture(1))
    with pytest.raises(NotImplementedError):
        batch.repeat_interleave(2)
    with pytest.raises(UserError, match="the column pixels holds packed images"):
        Prompts(batch, 1)


def test_rows_keep_the_experts_of_prompts_and_responses(harness):
    def routes(count):
        return torch.arange(count).reshape(count, 1, 1).expand(count, 2, 2).clone()

    prompt = [message("user", [5, 6, 7])]
    log = [message("user", [5, 6, 7], **{ROUTES: routes(3)}), answer(8, 9, **{ROUTES: routes(2)})]
    response = read(prompt, log, 1.0, False)
    assert torch.equal(response.prompt[0][ROUTES], routes(3))
    logs = [
        response.message_log,
        make_placeholder(response.prompt, response.generated),
        make_placeholder(response.prompt),
    ]
    columns, lengths = flat(logs)
    assert lengths.tolist() == [5, 2, 2] and columns[ROUTES].shape == (3, 5, 2, 2)
