"""`data prepare --exclude BENCH` leaves out problems that are in a benchmark."""

from __future__ import annotations

import json

import pytest

from nemo_ada.lab.data.contamination import find_instructions, list_words
from tests.lab.data.test_command_line import run

LONG = "Find the count of ordered pairs of positive integers (a, b) with a + b = 1000 so that neither has a zero digit."


def rows(path, texts):
    path.write_text("".join(json.dumps({"problem": text, "answer": n}) + "\n" for n, text in enumerate(texts)))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_problems_of_a_benchmark_are_left_out_with_the_line_that_they_share(tmp_path, capfd):
    bench = rows(tmp_path / "bench.jsonl", [LONG, "What is $2+3$?", "Another"])
    hidden = "Let us try: " + LONG.upper().replace("1000", "$1000$,").replace(" ", "  ") + " Explain why."
    train = rows(
        tmp_path / "train.jsonl", ["what is 2 + 3", "What is 2+3+4?", LONG, hidden, "A new problem", LONG[:40]]
    )
    out = tmp_path / "set"
    words = ["--verifier", "exact", "--out", out]
    assert run("data", "prepare", train, *words, "--exclude", bench) == 0
    assert [row["line"] for row in lines(out / "dataset.jsonl")] == [2, 5, 6]
    reasons = [row["reason"].partition("words, with ")[2] for row in lines(out / "rejected.jsonl")]
    assert reasons == ["line 2 of bench", "line 1 of bench", "line 1 of bench"]
    card = json.loads((out / "card.json").read_text())
    assert card["stages"]["exclude"]["left_out"] == {"in bench": 3}
    assert card["settings"]["exclude"]["bench"]["file"] == "bench.jsonl"
    capfd.readouterr()
    assert run("data", "prepare", train, *words) == 2
    assert "exclude.bench.file: 'bench.jsonl' -> None" in capfd.readouterr().err


def test_a_benchmark_without_a_problem_is_refused(tmp_path, capfd):
    bench, train = rows(tmp_path / "bench.jsonl", []), rows(tmp_path / "train.jsonl", ["a"])
    words = ["--verifier", "exact", "--out", tmp_path / "set", "--exclude", bench]
    assert run("data", "prepare", train, *words) == 2
    assert (
        "--exclude=bench: no problem can be read from its columns responses_create_params.input, problem, prompt"
        in capfd.readouterr().err
    )


ASK = "Solve the following math problem with care, reason step by step, and put the final answer within a box."
ORIGINAL = [f"Item {n}: what is {n} times {n * 7 % 31}?" for n in range(40)]  # shorter than 13 words
OTHERS = [f"Find the remainder of {n}**{n + 3} + {n * n} modulo {n + 11} if k{n} is odd" for n in range(80)]


def test_an_instruction_flags_nothing_and_hides_no_copy(tmp_path):
    """Before, an instruction in both sets flagged every problem, and one in a single set hid short copies."""
    for number, (ours, theirs) in enumerate([("", ""), (ASK, ""), ("", ASK), (ASK, ASK)]):
        bench = rows(tmp_path / f"bench{number}.jsonl", [f"{text} {theirs}" for text in ORIGINAL])
        train = rows(tmp_path / f"train{number}.jsonl", [f"{text} {ours}" for text in [*OTHERS, *ORIGINAL]])
        out = tmp_path / f"set{number}"
        words = ["--verifier", "exact", "--out", out, "--exclude", bench]
        assert run("data", "prepare", train, *words) == 0
        assert [row["line"] for row in lines(out / "dataset.jsonl")] == list(range(1, 81)), (ours, theirs)


def test_what_is_left_out_is_an_instruction_at_an_end():
    found = find_instructions([list_words(f"{ASK} {text}") for text in ORIGINAL])
    assert found == [(*list_words(ASK), "item")]
    assert find_instructions(list(map(list_words, ORIGINAL[:9]))) == []
    assert find_instructions(list(map(list_words, OTHERS))) == [], "few words in common are none"


FRACTION = r"Let $f(x)=\frac{1}{2}x$ and $g(x) = (x+\frac12)^{2}$. Find all real $x$ with $f(g(x)) = \sqrt{3}$."
COPIES = {
    "dfrac": FRACTION.replace(r"\frac", r"\dfrac"),
    "left": FRACTION.replace("(", r"\left(").replace(")", r"\right)"),
    "both": FRACTION.replace(r"\frac", r"\tfrac").replace("(", r"\bigl(").replace(")", r"\bigr)"),
    "displays": FRACTION.replace("$", r"\[", 1).replace("$", r"\]", 1).replace(" x", r" \,x"),
    "text": FRACTION.replace("Find all real", r"\textbf{Find all} \emph{real}"),
    "short arguments": FRACTION.replace(r"\frac{1}{2}", r"\frac12").replace("^{2}", "^2"),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_in_another_latex_has_the_same_words(name):
    assert list_words(COPIES[name]) == list_words(FRACTION)


def test_another_fraction_is_another_problem():
    assert list_words(FRACTION.replace(r"\frac12", r"\frac13")) != list_words(FRACTION)
