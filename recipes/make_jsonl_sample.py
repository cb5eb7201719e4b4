"""Write recipes/data/chain_sum.jsonl, the sample that the JSONL recipe trains on.

    python recipes/make_jsonl_sample.py

The file has 2000 different sums and differences of two or three one-digit numbers. They come from reasoning-gym's
chain_sum. The output depends only on reasoning-gym's generator, so the same command writes the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import reasoning_gym

ROWS = 2000
OUT = Path(__file__).parent / "data" / "chain_sum.jsonl"


def lines() -> list[str]:
    """Return one JSON object per line, in the generator's order, without repeated problems."""
    options = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    dataset = reasoning_gym.create_dataset("chain_sum", seed=0, size=10 * ROWS, **options)
    found: dict[str, str] = {}
    for index in range(len(dataset)):
        entry = dataset[index]
        problem = entry["metadata"]["expression"].replace(" ", "") + "="
        found.setdefault(problem, entry["answer"])
        if len(found) == ROWS:
            return [json.dumps({"problem": problem, "answer": answer}) for problem, answer in found.items()]
    raise SystemExit(f"only {len(found)} different problems in {len(dataset)}; raise the number of terms")


if __name__ == "__main__":
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    sys.stdout.write(f"{OUT}: {ROWS} lines, {OUT.stat().st_size} bytes\n")
