"""What the value estimator sees of a prompt inside NeMo-RL: its length and a sketch of its tokens.

The embedded back end gives it the policy's mean hidden state over the prompt. Inside NeMo-RL the prompts of a step are
known only in the rollout, while the policy's workers are off the GPU, so a forward pass there would cost two more
moves of the weights per step. The sketch costs nothing: signed counts of the prompt's tokens in hashed buckets
(Weinberger et al., arXiv 0902.2206), by the square root of the length. It tells prompts apart by their words, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.seeds import mix64

if TYPE_CHECKING:  # the settings import this module, and must be readable without torch
    from nemo_ada.nemo.response import Message

BUCKETS = 62
WIDTH = BUCKETS + 2  # log length, share of distinct tokens


def prompt_features(logs: Sequence[Sequence[Message]]) -> NDArray[np.float64]:
    """Features [P, WIDTH] of prompts, from the token ids of their messages; equal for equal prompts, in any run."""
    features_PF = np.zeros((len(logs), WIDTH))
    for row_F, log in zip(features_PF, logs, strict=True):
        tokens_T = np.concatenate([message["token_ids"].cpu().numpy() for message in log]).astype(np.uint64)
        if len(tokens_T) == 0:
            continue
        hash_T = mix64(tokens_T)
        sign_T = np.where(hash_T >> np.uint64(63), 1.0, -1.0)
        bucket_T = (hash_T % np.uint64(BUCKETS)).astype(np.int64)
        row_F[:BUCKETS] = np.bincount(bucket_T, sign_T, BUCKETS) / np.sqrt(len(tokens_T))
        row_F[BUCKETS:] = np.log(len(tokens_T)), len(np.unique(tokens_T)) / len(tokens_T)
    return features_PF
