"""`nemo-ada export` of a run that somebody else made: nothing of the user's gets into the model that is pushed."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.export import export_checkpoint, write_model_card
from nemo_ada.run.data_files import read_rows
from nemo_ada.tasks.prompting import CONTRACT, ModelTokenizer, PromptFormat
from tests.lab.data.fake_server import model_folder
from tests.people import OTHER, needs_two_users

PRIVATE = "what only the user may read"
HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the user's, beside the run."""
    folder = tmp_path / "private"
    folder.mkdir()
    for name in ("id_rsa", "config.json", "tokenizer.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(PRIVATE))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder


def foreign(folder: Path, config: dict) -> Path:
    """A checkpoint of DTensor as a download brings it, with a configuration."""
    saved = folder / "checkpoints" / "step_7" / "policy"
    for inner in (saved / "weights/model/consolidated", saved / "tokenizer"):
        inner.mkdir(parents=True)
    (saved / "weights/model/consolidated/model.safetensors").write_bytes(WEIGHTS)
    for name in ("config.json", "tokenizer.json"):
        (saved / "weights/model/consolidated" / name).write_text("{}")
    for place in (folder, folder / "checkpoints" / "step_7"):
        (place / "config.yaml").write_text(yaml.safe_dump(config))
    return saved


def exported(run: Path, out: Path) -> str:
    """All that an export holds, as text; a refusal leaves nothing."""
    try:
        export_checkpoint(run, step=None, out=out, say=lambda _line: None)
    except UserError as error:
        return "refused" if "is a link" in str(error) and not out.exists() else str(error)
    assert not any(path.is_symlink() for path in out.rglob("*"))
    return "".join(path.read_text(errors="replace") for path in out.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("policy/tokenizer/chat_template.jinja", "id_rsa"),
        ("policy/tokenizer/more", ""),
        ("policy/weights/model/consolidated/vocab.json", "id_rsa"),
        ("policy/weights/model/consolidated/inner", ""),
        ("policy/weights/model/shard-1.safetensors", "model.safetensors"),
    ],
)
def test_no_link_takes_a_file_of_the_user_along(tmp_path: Path, private: Path, link: str, target: str) -> None:
    saved = foreign(tmp_path / "run", {})
    (saved.parent / link).symlink_to(private / target)
    assert exported(tmp_path / "run", tmp_path / "out") == "refused"


def test_a_checkpoint_that_is_a_link_is_refused(tmp_path: Path, private: Path) -> None:
    saved = foreign(tmp_path / "mine", {})
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step_7").symlink_to(saved.parent)
    assert exported(tmp_path / "run", tmp_path / "out") == "refused"


def test_a_configuration_of_the_run_names_no_file_for_the_export(tmp_path: Path, private: Path) -> None:
    key = str(private / "id_rsa")
    config = {
        "policy": {"model_name": str(private)},
        "data": {"default": {"system_prompt_file": key, "prompt_file": key}},
    }
    foreign(tmp_path / "run", config)
    (tmp_path / "run" / CONTRACT).write_text(json.dumps({"system": "of the run"}))
    text = exported(tmp_path / "run", tmp_path / "out")
    assert "of the run" in text and PRIVATE not in text


def without_weights(saved: Path) -> Path:
    for path in sorted((saved / "weights/model").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return saved / "weights"


HOSTILE: dict[str, Callable[[Path], object]] = {  # what stands below step_7 -> how it is made
    "a pipe for weights": lambda step: os.mkfifo(step / "policy/weights/model/consolidated/model-2.safetensors"),
    "a pipe for a tokenizer": lambda step: os.mkfifo(step / "policy/tokenizer/tokenizer.json"),
    "a header without end": lambda step: weights_of(step).write_bytes(b"\xff" * 8 + b"{"),
    "a header that is a list": lambda step: weights_of(step).write_bytes((2).to_bytes(8, "little") + b"[]"),
    "a header of nested lists": lambda step: weights_of(step).write_bytes((90000).to_bytes(8, "little") + b"[" * 90000),
    "no offsets": lambda step: weights_of(step).write_bytes((8).to_bytes(8, "little") + b'{"w": 1}'),
    "an index that is a list": lambda step: (weights_of(step).parent / "model.safetensors.index.json").write_text("[]"),
    "a map that is a list": lambda step: (weights_of(step).parent / "model.safetensors.index.json").write_text(
        '{"weight_map": [1]}'
    ),
    "a folder for a config": lambda step: remade(step / "config.yaml").mkdir(),
    "a pipe for a config": lambda step: os.mkfifo(remade(step / "config.yaml")),
    "a config that is a list": lambda step: (step / "config.yaml").write_text("[1]"),
    "a config without a model": lambda step: (step / "config.yaml").write_text("policy: 7"),
    "peft that is a text": lambda step: peft(step, "peft: yes"),
    "a configuration of lists": lambda step: peft(step, "[1, 2]"),
    "no folder": lambda step: (shutil.rmtree(step), step.write_text("x")),
}


def weights_of(step: Path) -> Path:
    return step / "policy/weights/model/consolidated/model.safetensors"


def remade(path: Path) -> Path:
    path.unlink()
    return path


def peft(step: Path, text: str) -> None:
    (without_weights(step / "policy") / "iter_1").mkdir()
    (step / "policy/weights/iter_1/run_config.yaml").write_text(text)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_gets_one_sentence(tmp_path: Path, monkeypatch, what: str) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path / "none"))
    saved = foreign(tmp_path / "run", {"policy": {"model_name": "none/such"}})
    HOSTILE[what](saved.parent)
    if what.startswith(("a folder for a config", "a config that", "a config without")):
        # DTensor's export needs none
        export_checkpoint(tmp_path / "run", step=None, out=tmp_path / "out", say=lambda _line: None)
        return
    with pytest.raises(UserError) as refused:
        export_checkpoint(tmp_path / "run", step=None, out=tmp_path / "out", say=lambda _line: None)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
    assert not (tmp_path / "out").exists()


@needs_two_users
@pytest.mark.parametrize("place", [".", "checkpoints/step_7", "checkpoints/step_7/policy/tokenizer/tokenizer.json"])
def test_what_belongs_to_another_user_is_not_exported(tmp_path: Path, place: str) -> None:
    saved = foreign(tmp_path / "run", {})
    (saved / "tokenizer/tokenizer.json").write_text("{}")
    os.chown(tmp_path / "run" / place, OTHER, OTHER)
    with pytest.raises(UserError, match=f"is not used: it belongs to .*{OTHER}"):
        export_checkpoint(tmp_path / "run", step=None, out=tmp_path / "out", say=lambda _line: None)
    assert not (tmp_path / "out").exists()


def test_a_run_writes_no_keys_into_the_head_of_its_card(tmp_path: Path) -> None:
    name = "a/b\nlicense: mit\nbase_model_relation: x\n---\n# Title"
    saved = foreign(tmp_path / "run", {"policy": {"model_name": name}, "grpo": {"seed": "1\n# Other"}})
    (tmp_path / "run" / "evaluations.jsonl").write_text(
        '{"step": 5, "val/a": 0.5}\n{broken\n[1]\n{"step": "x"}\n{"step": ' + "9" * 5000 + '}\n{"step": NaN}\n'
    )
    (tmp_path / "run" / "environment.json").write_text("{broken")
    card = write_model_card(tmp_path / "run", saved.parent)
    head = yaml.safe_load(card.split("---")[1])
    assert head.keys() == {"library_name", "tags"} and "a 0.500" in card
    assert [line for line in card.splitlines() if line.startswith("# ")] == ["# run, step 7"]


@pytest.mark.parametrize("damage", ["middle", "end", "no gzip", "checksum"])
def test_a_damaged_gzip_is_an_error_of_one_line(tmp_path: Path, damage: str) -> None:
    good = gzip.compress(b"".join(b'{"problem": "%d", "answer": "1"}\n' % n for n in range(3000)))
    bad = {
        "middle": good[:100] + b"\xff" * 200 + good[300:], "end": good[: len(good) // 2], "no gzip": b"{}\n" * 9,
        "checksum": good[:-8] + bytes(8),
    }  # fmt: skip
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(bad[damage])
    with pytest.raises(UserError, match="cannot be read"):
        list(read_rows(path))


def test_a_pipe_as_a_data_file_is_refused(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.jsonl.gz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="pipe"):
            list(read_rows(tmp_path / name))


TEMPLATES = {
    "{{ raise_exception('System role not supported') }}": "System role not supported",
    "{% for m in messages %}": "refuses the prompt",
    "{{ messages[7].content.x.y }}": "refuses the prompt",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "takes more than 1 s of a core",
    "{{ 9**(9**9) }}": "takes more than 1 s of a core",  # one operation, which no timer of Python ends
    "{{ 'a'*3000000000 }}": "MiB of memory",
    "{{ messages[0].role * 20000000 }}": "more than 67,108,864 characters",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_or_does_not_end_is_an_error_of_one_line(tmp_path, monkeypatch, template) -> None:
    monkeypatch.setattr("nemo_ada.tasks.prompting.TEMPLATE_SECONDS", 1.0)
    model = model_folder(tmp_path / "model")
    (model / "chat_template.jinja").write_text(template)
    encoder = ModelTokenizer(model, PromptFormat(template="chat", system="x"))
    with pytest.raises(UserError, match=TEMPLATES[template]):
        encoder.encode("1+1=")


def test_a_chat_template_gives_the_ids_that_the_library_gives(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    (model / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant{% if thinks %} thinks{% endif %}: {% endif %}"
    )
    encoder = ModelTokenizer(model, PromptFormat(template="chat", system="x", chat_template_kwargs={"thinks": True}))
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "1+1="}]
    expected = encoder._tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, thinks=True
    )
    assert encoder.encode("1+1=") == list(expected)


def test_a_pipe_in_a_models_folder_is_refused(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    (model / "tokenizer_config.json").unlink(missing_ok=True)
    os.mkfifo(model / "tokenizer_config.json")
    with pytest.raises(UserError, match="pipe"):
        ModelTokenizer(model).encode("1")
