"""Features of a prompt for the value estimator inside NeMo-RL: its length and a sketch of its tokens.

Over NeMo-Gym a prompt has no tokens before its rollout. The words of its request stand for them.

The CPU back end uses the policy's mean hidden state over the prompt. Inside NeMo-RL the prompts of a step are
known only in the rollout, while the policy's workers are off the GPU. A forward pass there would move the weights two
more times per step. The sketch costs nothing. It has signed counts of the prompt's tokens in hashed buckets (Weinberger
et al., arXiv 0902.2206), divided by the square root of the length. It distinguishes prompts by their words only.

P prompts, F features, T tokens of a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.seeds import mix64

if TYPE_CHECKING:  # the settings import this module, and they must be readable without torch
    from nemo_ada.nemo.rollouts.response import Message

WORDS = re.compile(r"\w+|[^\w\s]")
BUCKETS = 62
WIDTH = BUCKETS + 2  # the last two are the log length and the share of distinct tokens


def compute_prompt_features(logs: Sequence[Sequence[Message]]) -> NDArray[np.float64]:
    """Features [P, WIDTH] of prompts, from the token ids of their messages. Equal prompts have equal features."""
    return _compute_sketches([np.concatenate([message["token_ids"].cpu().numpy() for message in log]) for log in logs])


def compute_request_features(requests: Sequence[str]) -> NDArray[np.float64]:
    """Features [P, WIDTH] of prompts over NeMo-Gym, from the words and signs of their requests."""
    return _compute_sketches([np.array([crc32(word.encode()) for word in WORDS.findall(text)]) for text in requests])


def _compute_sketches(tokens_PT: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    features_PF = np.zeros((len(tokens_PT), WIDTH))
    for row_F, numbers_T in zip(features_PF, tokens_PT, strict=True):
        tokens_T = numbers_T.astype(np.uint64)
        if len(tokens_T) == 0:
            continue
        hash_T = mix64(tokens_T)
        sign_T = np.where(hash_T >> np.uint64(63), 1.0, -1.0)
        bucket_T = (hash_T % np.uint64(BUCKETS)).astype(np.int64)
        row_F[:BUCKETS] = np.bincount(bucket_T, sign_T, BUCKETS) / np.sqrt(len(tokens_T))
        row_F[BUCKETS:] = np.log(len(tokens_T)), len(np.unique(tokens_T)) / len(tokens_T)
    return features_PF
