"""A task for the CPU back end: prompts in three disjoint sets, demonstrations for the base model, and verdicts.

nemo-ada train configs/cpu/base.yaml 'task={name: own, task: task:Addition, arguments: {seed: 1}}'
"""

import random

from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, make_content_id
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.verdict import Verdict


class Addition:
    """Sums of two numbers below 100: `37+5=` and its answer `42`."""

    name, max_prompt_tokens, max_new_tokens = "addition", 6, 4

    def __init__(self, tokenizer, seed: int = 0) -> None:
        """`tokenizer` is that of `policy.model_name`; without a model a task brings its own."""
        self.tokenizer = tokenizer or CharTokenizer()
        self.order = random.Random(seed).sample(range(10_000), 10_000)

    def splits(self) -> Splits:
        sums = [(f"{i // 100}+{i % 100}=", str(i // 100 + i % 100)) for i in self.order]
        all_ = tuple(Prompt(make_content_id(self.name, text), text, answer, {}) for text, answer in sums)
        return Splits(all_[:4096], all_[4096:4352], tuple(Demonstration(p.text, p.answer) for p in all_[4352:]))

    def submit(self, prompt, text: str, finished: bool) -> Verdict:
        return Verdict(float(finished and text == prompt.answer))

    def close(self) -> None: ...
