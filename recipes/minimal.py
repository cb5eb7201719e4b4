"""Reinforce-Ada-Seq-balance in one loop, with a small transformer on a CPU: `python recipes/minimal.py`.

Read this file first. It has one function per step of the method, in the order of the paper (arXiv 2510.04996):

1. `draw_pools`: draw responses in waves until a prompt has enough correct and incorrect ones (Algorithm 1).
2. `select`: keep exactly n responses per prompt, half of them correct where there are enough ("Downsample").
3. `weigh`: give each kept response an advantage against the mean of the whole pool ("Global normalisation").
4. `update`: take a policy gradient step with a clipped ratio ("Asymmetric clipping").

A prompt is two letters, and a response is correct if it has the same letters in reverse. A random model solves 1 of 36
prompts. The packages `nemo_ada.core` and `nemo_ada.nemo` do the same with continuous scheduling, limits and a verifier;
a test holds the rows of this file equal to theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

LETTERS, LENGTH = 6, 2
N = 4  # rows per prompt
WAVE = 8  # responses per wave
N_MAX = 32  # responses per prompt, at most
K_POS, K_NEG = N // 2, N - N // 2  # the exit: so many correct and so many incorrect responses
PROMPTS, STEPS, MINI_BATCHES = 32, 24, 2
LEARNING_RATE, CLIP_LOW, CLIP_HIGH = 3e-3, 0.2, 0.28

Pools = list[list[bool]]
Draw = Callable[[list[int]], list[bool]]


class Policy(nn.Module):
    """A transformer of one layer, which predicts the next letter."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letter = nn.Embedding(LETTERS, width)
        self.place = nn.Embedding(2 * LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next letter at every place: [rows, places, letters]."""
        places = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(places)
        hidden = self.letter(tokens) + self.place(torch.arange(places))
        return self.head(self.block(hidden, src_mask=mask, is_causal=True))

    @torch.no_grad()
    def generate(self, prompts: Tensor) -> Tensor:
        """Sample one response for each row of `prompts`: [rows, prompt and response]."""
        tokens = prompts
        for _ in range(LENGTH):
            letter = torch.multinomial(self(tokens)[:, -1].softmax(-1), 1)
            tokens = torch.cat([tokens, letter], 1)
        return tokens

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Log-probability of each response letter: [rows, LENGTH]."""
        logp = self(tokens[:, :-1]).log_softmax(-1)[:, LENGTH - 1 :]
        return logp.gather(2, tokens[:, LENGTH:, None])[:, :, 0]


def draw_pools(prompts: int, draw: Draw) -> Pools:
    """Draw responses in waves: a prompt stays active until its pool meets the exit or is full.

    Args:
        prompts: number of prompts of the step.
        draw: draws one response for each prompt in a list, where a prompt may occur several times, and labels it.

    Returns:
        The labels of each prompt's pool, in the order of drawing.
    """
    pools: Pools = [[] for _ in range(prompts)]
    active = list(range(prompts))
    while active:
        wave = [prompt for prompt in active for _ in range(min(WAVE, N_MAX - len(pools[prompt])))]
        for prompt, correct in zip(wave, draw(wave), strict=True):
            pools[prompt].append(correct)
        active = [prompt for prompt in active if not enough(pools[prompt]) and len(pools[prompt]) < N_MAX]
    return pools


def enough(pool: list[bool]) -> bool:
    """The exit of Reinforce-Ada-Seq-balance."""
    return sum(pool) >= K_POS and len(pool) - sum(pool) >= K_NEG


def select(pool: list[bool], key: np.ndarray) -> list[int]:
    """Choose N responses of a pool, at random within each side.

    Args:
        pool: labels of the pool.
        key: a random number for each response. The smallest ones of each side are chosen.

    Returns:
        Positions in the pool, in the order of drawing. Where one side is short, the other side fills up.
    """
    order = np.argsort(key, kind="stable").tolist()
    correct, incorrect = [i for i in order if pool[i]], [i for i in order if not pool[i]]
    from_correct = min(len(correct), K_POS + max(K_NEG - len(incorrect), 0))
    from_incorrect = min(len(incorrect), K_NEG + max(K_POS - len(correct), 0))
    return sorted(correct[:from_correct] + incorrect[:from_incorrect])


def weigh(pool: list[bool], kept: list[int]) -> list[float]:
    """Advantage of each kept response: its reward less the mean reward of the whole pool, kept or not."""
    mean = sum(pool) / len(pool)
    return [float(pool[i]) - mean for i in kept]


def update(policy: Policy, optimizer: torch.optim.Optimizer, tokens: Tensor, advantage: Tensor) -> float:
    """Take MINI_BATCHES gradient steps on the rows of one training step, and return the last loss."""
    with torch.no_grad():
        old = policy.logprobs(tokens)
    for rows in torch.randperm(len(tokens)).chunk(MINI_BATCHES):
        ratio = (policy.logprobs(tokens[rows]) - old[rows]).exp()
        gain = advantage[rows, None]
        loss = -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def main(steps: int = STEPS) -> float:
    """Train, print one line per step, and return the share of correct responses to all prompts at the end."""
    torch.set_num_threads(1)  # the matrices are small
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        prompt = torch.randint(LETTERS, (PROMPTS, LENGTH))
        drawn: list[list[Tensor]] = [[] for _ in range(PROMPTS)]

        def draw(wave: list[int], prompt: Tensor = prompt, drawn: list[list[Tensor]] = drawn) -> list[bool]:
            tokens = policy.generate(prompt[wave])
            for number, row in zip(wave, tokens, strict=True):
                drawn[number].append(row)
            return verify(tokens)

        pools = draw_pools(PROMPTS, draw)
        kept = [select(pool, rng.random(len(pool))) for pool in pools]
        tokens = torch.stack([drawn[i][j] for i in range(PROMPTS) for j in kept[i]])
        advantage = torch.tensor([a for pool, rows in zip(pools, kept, strict=True) for a in weigh(pool, rows)])
        loss = update(policy, optimizer, tokens, advantage)
        responses = sum(map(len, pools))
        rate = sum(map(sum, pools)) / responses
        mixed = sum(0 < sum(pool) < len(pool) for pool in pools)
        print(
            f"step {step:2}  correct {rate:.0%}  responses {responses}  prompts with signal {mixed}/{PROMPTS}  "
            f"loss {loss:+.3f}  {time.perf_counter() - start:.0f} s"
        )
    every = torch.cartesian_prod(*[torch.arange(LETTERS)] * LENGTH)
    return float(np.mean(verify(policy.generate(every.repeat(8, 1)))))


def verify(tokens: Tensor) -> list[bool]:
    """The verifier: does each response have its prompt's letters in reverse?"""
    return (tokens[:, LENGTH:] == tokens[:, :LENGTH].flip(1)).all(1).tolist()


if __name__ == "__main__":
    print(f"{main():.0%} of the responses to all {LETTERS**LENGTH} prompts are correct")
