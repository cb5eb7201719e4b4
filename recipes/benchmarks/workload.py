"""The work that the benchmarks of sampling share: pass rates, lengths, and an engine that replays them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.lab.simulate.engine import LengthModel, Workload
from nemo_ada.lab.simulate.steps import BetaRates

GROUP = 4
"""The group size n."""
HARD = BetaRates(0.6, 1.5)
"""Most prompts are hard. Every third one has a pass rate below 1 in 10."""
SPREAD = BetaRates(2.0, 2.0)
"""Most prompts are solved in their first wave. A few need up to four."""
LENGTHS = LengthModel(median=12.0, sigma=0.9, wrong_factor=1.3, max_new_tokens=240)
"""Short responses with a heavy tail. About 0.1 % reach the limit."""
PROMPT_TOKENS = 4


class ReplaySource:
    """The vLLM engine with labels and lengths from a workload: what is drawn is real, what it is worth is given."""

    def __init__(self, engine: Any, workload: Workload, *, step_clock: bool) -> None:
        from nemo_ada.cpu.engine.source import EngineSource
        from nemo_ada.cpu.engine.vllm_engine import Sampling
        from nemo_ada.verify.verdict import Verdict

        prompts = [[2 + p % 50] * PROMPT_TOKENS for p in range(len(workload.pass_rate_P))]
        self._workload = workload
        self._labels: dict[int, float] = {}
        self._inner = EngineSource(
            engine, prompts, lambda *_: Verdict(0.0), Sampling(LENGTHS.max_new_tokens), lengths=self._length
        )
        self.clock = (lambda: float(engine.steps)) if step_clock else self._inner.clock

    def _length(self, prompt: int, index: int) -> int:
        return int(self._workload.draw(np.array([prompt]), np.array([index]))[1][0])

    def submit(self, requests: Requests) -> None:
        rewards, _ = self._workload.draw(requests.prompt_N, requests.index_N)
        self._labels.update(zip(requests.response_id_N.tolist(), rewards.tolist(), strict=True))
        self._inner.submit(requests)

    def poll(self) -> Outcomes:
        outcomes = self._inner.poll()
        rewards = [self._labels[response_id] for response_id in outcomes.response_id_N.tolist()]
        return replace(outcomes, reward_N=np.array(rewards))

    def abort(self, response_id_N: np.ndarray) -> np.ndarray:
        return self._inner.abort(response_id_N)

    def close(self) -> None:
        self._inner.close()
