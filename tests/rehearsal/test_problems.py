"""Generated problems and the vocabulary that can answer them."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_ada.rehearsal import problems
from nemo_ada.rehearsal.shrink import BLOCK_TOKENS


def test_answers_are_tokens_and_problems_have_no_unknown_piece(tmp_path: Path) -> None:
    texts = problems.write_problems(tmp_path)
    tokens = problems.make_vocabulary([*texts, "Please reason step by step."])
    assert len(tokens) == len(set(tokens)) == problems.SIZE
    assert {f"\\boxed{{{digit}}}" for digit in range(10)} <= set(tokens)
    assert {piece for text in texts for piece in problems.PIECES.findall(text)} <= set(tokens)


def test_a_prompt_fills_a_block_of_the_kv_cache_even_where_words_are_dropped() -> None:
    """transformers' own tokenizer for Qwen2 keeps our pieces of one letter, but for spaces."""
    for row in problems.make_problems():
        kept = [piece for piece in problems.PIECES.findall(row["problem"]) if len(piece) == 1 and piece != " "]
        assert len(kept) > BLOCK_TOKENS


def test_training_and_validation_share_no_problem(tmp_path: Path) -> None:
    problems.write_problems(tmp_path)
    train, held_out = (
        {json.loads(line)["problem"] for line in (tmp_path / name).read_text().splitlines()}
        for name in (problems.TRAIN, problems.VALIDATION)
    )
    assert train and held_out and not train & held_out
