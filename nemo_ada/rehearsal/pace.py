"""The pace of vLLM alone: tokens per second at several numbers of responses at once, with drawn lengths.

    python -m nemo_ada.rehearsal.pace SPEC.json

It notes an event per number, and runs in the engine's interpreter without stand-ins.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal.observe import note
from nemo_ada.run.files import json_of

PROMPT_TOKENS = 150
"""Tokens of a prompt, as in `plan`'s roofline."""


@dataclass(frozen=True, slots=True)
class PaceSpec:
    """What is measured.

    Attributes:
        model: Folder of the model.
        counts: Numbers of responses at once.
        length: Longest prompt plus response, tokens.
        lengths: Lengths of the responses.
        engine: More arguments of vllm.LLM.
    """

    model: str
    counts: tuple[int, ...]
    length: int
    lengths: LengthModel
    engine: dict[str, Any]

    def as_json(self) -> str:
        """Return the content of SPEC.json."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> PaceSpec:
        """Read SPEC.json."""
        content = json_of(path)
        return cls(**{**content, "counts": tuple(content["counts"]), "lengths": LengthModel(**content["lengths"])})

    def drawn(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The lengths of `count` responses, tokens. They are the same in every run."""
        rng = np.random.default_rng(count)
        return self.lengths.tokens(np.ones(count, np.bool_), rng.standard_normal(count))


def measure(spec: PaceSpec) -> None:
    """Start vLLM, generate, and note what each number of responses took."""
    started = time.monotonic()
    from vllm import LLM, SamplingParams, __version__

    llm = LLM(model=spec.model, load_format="dummy", max_model_len=spec.length, **spec.engine)
    note(event="engine ready", seconds=round(time.monotonic() - started, 2), version=__version__)
    rng = np.random.default_rng(0)
    for count in spec.counts:
        lengths = spec.drawn(count)
        prompts: Any = [{"prompt_token_ids": rng.integers(10, 200, PROMPT_TOKENS).tolist()} for _ in range(count)]
        parameters = [
            SamplingParams(temperature=1.0, max_tokens=int(n), ignore_eos=True, detokenize=False, logprobs=0)
            for n in lengths
        ]
        began = time.monotonic()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.monotonic() - began
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        note(event="pace", responses=count, tokens=tokens, longest=int(lengths.max()), seconds=round(seconds, 3))


if __name__ == "__main__":
    measure(PaceSpec.read(Path(sys.argv[1])))
    note(event="done", code=0)
