"""A reward of the user's, in data preparation and evaluation."""

from __future__ import annotations

import json

import pytest

from nemo_ada.errors import UserError
from nemo_ada.verify.judge import make_judge
from tests.lab.data.fake_server import completion, model_folder, serving
from tests.lab.data.test_command_line import run

SCORER = """
def near(response, reference):
    from_box = response.partition("boxed{")[2].partition("}")[0]
    answer = from_box or (response if response == reference else "nan")
    if answer == "hang":
        while True:
            pass
    return float(abs(float(answer) - float(reference)) < 0.1)
"""


@pytest.mark.long
def test_an_evaluation_asks_the_users_reward_and_an_answer_that_hangs_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "my_scorer.py").write_text(SCORER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "*")
    source, model = tmp_path / "a.jsonl", model_folder(tmp_path / "model")
    source.write_text(
        json.dumps({"problem": "1+1=", "answer": "2"}) + "\n" + json.dumps({"problem": "2+2=", "answer": "4"})
    )
    texts = iter([r"\boxed{2.04}", r"\boxed{hang}", r"\boxed{7}", "2"])
    with serving(model, lambda _asked: completion(next(texts))) as server:
        words = ["--data", source, "--out", tmp_path / "out", "--server", server.url, "--max-num-seqs", 1, "--k", 2]
        words += ["--max-prompt-tokens", 8, "--max-new-tokens", 16, "--reward", "my_scorer:near"]
        assert run("eval", model, *words) == 0
    responses = [json.loads(line) for line in (tmp_path / "out" / "a" / "responses.jsonl").read_text().splitlines()]
    assert [(r["reward"], r.get("cause")) for r in responses] == [
        (1.0, None), (0.0, "verifier_timeout"), (0.0, None), (0.0, None)
    ]  # fmt: skip
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["settings"]["benchmarks"]["a"]["judged_by"].startswith("my_scorer.py:near ")
    assert content["overall"]["timed_out"] == 1 and len(server.asked) == 4


@pytest.mark.parametrize("scorer", ["no_such_module:f", "json", "json:", "../x:f", "a b:f"])
def test_a_reward_that_is_not_there_is_refused_at_once(scorer):
    with pytest.raises(
        UserError, match=r"--reward=.*(must be package\.module:name|importing|there is no module|Python's own)"
    ):
        make_judge("math", scorer, key="--reward")


REFERENCES = [["2"], {"cases": [[1, 2]], "limit": 3}, " 5 #### 7", r"\boxed{8}", 9, [["a", 1], ["b", None]]]
TYPED = f"""
import json
KNOWN = {REFERENCES!r}
def same(response, reference):
    place = [one for one, known in enumerate(KNOWN) if known == reference and type(known) is type(reference)]
    wanted = reference if isinstance(reference, str) else json.dumps(reference)
    return float(bool(place) and response == wanted)
"""


def test_a_reward_gets_references_as_the_data_has_them_and_a_prepared_set_keeps_them(tmp_path, monkeypatch):
    (tmp_path / "my_types.py").write_text(TYPED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "*")
    source, model = tmp_path / "a.jsonl", model_folder(tmp_path / "model")
    rows = [{"problem": f"{n}+{n}=", "answer": reference} for n, reference in enumerate(REFERENCES)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--reward", "my_types:same"]
    assert run("data", "prepare", source, "--out", tmp_path / "set", *words) == 0
    made = [json.loads(line) for line in (tmp_path / "set" / "dataset.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in made] == REFERENCES
    texts = iter(one if isinstance(one, str) else json.dumps(one) for one in REFERENCES)
    with serving(model, lambda _asked: completion(next(texts))) as server:
        words = ["--data", tmp_path / "set" / "dataset.jsonl", "--out", tmp_path / "out", "--server", server.url]
        words += ["--max-num-seqs", 1, "--k", 1, "--max-prompt-tokens", 8, "--max-new-tokens", 16]
        assert run("eval", model, *words, "--reward", "my_types:same") == 0
    responses = [
        json.loads(line) for line in (tmp_path / "out" / "dataset" / "responses.jsonl").read_text().splitlines()
    ]
    assert [response["reward"] for response in responses] == [1.0] * len(REFERENCES)
