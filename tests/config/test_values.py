"""What a YAML can make of its values: secrets of the environment, endless interpolations, numbers without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_ada.config.load import load_words, resolve_config
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.config_file import register_arithmetic

TOKEN = "hf_" + "Planted7" * 4


def loaded(folder: Path, text: str, *words: str) -> dict:
    file = folder / "config.yaml"
    file.write_text(text)
    register_arithmetic()
    return resolve_config(load_words(file, words))


@pytest.mark.parametrize(
    "text",
    [
        "logger: {wandb: {project: '${oc.env:HF_TOKEN}'}}",
        "run_dir: runs/${oc.env:HF_TOKEN}",
        "logger: {wandb: {name: 'a${oc.env:MY_PASS}b'}}",
        "other: ${oc.env:HF_TOKEN}\nlogger: {wandb: {entity: '${other}'}}",
        "logger: {wandb: {tags: ['${oc.env:HF_TOKEN}']}}",
        "data: {train: [{name: '${oc.env:DATABASE}'}]}",
        "env: {a: {url: 'http://me:Zq7v9XkT2m@h/x'}}",
    ],
)
def test_a_value_that_redaction_would_hide_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("MY_PASS", "s3cret-word")
    monkeypatch.setenv("DATABASE", "postgres://me:Zq7v9XkT2m@h/db")
    with pytest.raises(UserError, match="is or holds a secret") as error:
        loaded(tmp_path, text)
    assert not any(secret in str(error.value) for secret in (TOKEN, "s3cret-word", "Zq7v9XkT2m"))


def test_other_values_of_the_environment_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", "/data/team")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert loaded(tmp_path, "run_dir: ${oc.env:WHERE}/runs\nx: 'no such token: x'\nhf_config_overrides: {}") == {
        "run_dir": "/data/team/runs", "x": "no such token: x", "hf_config_overrides": {}
    }  # fmt: skip


def doubled(levels: int) -> str:
    return "\n".join(f"a{n}: '${{a{n + 1}}}${{a{n + 1}}}'" for n in range(levels)) + f"\na{levels}: x\n"


@pytest.mark.parametrize(
    "text",
    [
        doubled(26),
        doubled(30) + "task: {reward: '${a0}'}",
        "a: ${mul:xx,1000000000}",
        "\n".join(f"a{n}: '${{mul:${{a{n + 1}}},${{a{n + 1}}}}}'" for n in range(12)) + "\na12: 999999\n",
        "seed: " + "1:" * 3000 + "1",
        "seed: " + "9" * 5000,
        "seed: 0x" + "f" * 5000,
        "seed: -" + "9" * 5000,
    ],
    ids=["interpolations", "a name of code", "text times a number", "powers", "base 60", "digits", "hex", "negative"],
)
def test_a_small_yaml_makes_no_endless_work(tmp_path, text):
    """Counted, not timed: the first one would resolve 2^26 interpolations."""
    assert len(text) < 7000
    with pytest.raises(UserError):
        loaded(tmp_path, text)


def test_a_value_has_a_length(tmp_path):
    with pytest.raises(UserError, match="characters"):
        loaded(tmp_path, f"a: {'x' * 600_000}\nb: '${{a}}${{a}}'")


def test_deep_chains_and_usual_numbers_work(tmp_path):
    text = "\n".join(f"a{n}: ${{a{n + 1}}}" for n in range(20)) + "\na20: 7\ntime: 1:30:00\nb: ${mul:6,${a20}}\n"
    found = loaded(tmp_path, text)
    assert (found["a0"], found["time"], found["b"]) == (7, 5400, 42)
