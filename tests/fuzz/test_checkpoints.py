"""Step folders and run directories that a disk, a person or an attacker has changed."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from nemo_ada.errors import UserError
from nemo_ada.run import provenance
from nemo_ada.run.files import MANIFEST, write_folder
from nemo_ada.run.folder import RunDir, read_lines
from tests.fuzz.harness import COUNTED, VALUES, attempt, cases, deadline
from tests.lazy import Lazy

pytestmark = pytest.mark.long

torch, convert = Lazy("torch"), Lazy("nemo_ada.cpu.learner.convert")
checkpoint, training = Lazy("nemo_ada.cpu.checkpoint"), Lazy("nemo_ada.cpu.trainer")

CONFIG = {"run_dir": "run", "grpo": {"seed": 0, "max_num_steps": 5}, "task": {"name": "t"}}
STATE = {
    "step": 2,
    "position": 32,
    "totals": {"responses": 64, "tokens": 900, "rows": 64, "live_rows": 20, "engine_steps": 90, "seconds": 1.5},
    "sampler": {"estimator": None, "latency": {"lengths": [3, 4]}},
    "evaluated": {"step": 0, "val/accuracy": 0.25},
    "fingerprint": "f",
}


def fill(step):
    def write(folder):
        for name in ("learner", "hf"):
            (folder / name).mkdir()
        tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.full(3, step, np.float32)}
        save_file(tensors, folder / "learner" / "model.safetensors")
        (folder / "learner" / "learner.json").write_text(json.dumps({"step": step, "shape": {}}))
        (folder / "hf" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
        (folder / "state.json").write_text(json.dumps({**STATE, "step": step}))

    return write


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    run = RunDir(tmp_path_factory.mktemp("template") / "run")
    run.checkpoint_folder(2).parent.mkdir(parents=True)
    for step in (2, 4, 6):
        write_folder(run.checkpoint_folder(step), fill(step))
    return run.path


@pytest.fixture
def fresh(template, tmp_path):
    """fresh(): a new copy of the run directory."""

    def make():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(template, tmp_path / "run", symlinks=True)
        return RunDir(tmp_path / "run")

    return make


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flipped(data, draw):
    """One bit changed; an empty file gets one."""
    if not data:
        return b"x"
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]


def damage(folder, draw):
    """One change somewhere below a step folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    path, other = draw(st.sampled_from(files)), draw(st.sampled_from(files))
    data = path.read_bytes()

    def link(target):
        path.unlink()
        path.symlink_to(target)

    def replace(changed, text):
        if changed.is_symlink():  # an earlier change made it one, perhaps to a file of the machine
            changed.unlink()
        elif changed.is_dir():
            changed.rmdir()
        changed.write_text(text)

    changes = [
        lambda: path.write_bytes(data[: draw(st.integers(0, max(0, len(data) - 1)))]),
        lambda: path.write_bytes(flipped(data, draw)),
        lambda: path.unlink(),
        lambda: (folder / draw(st.sampled_from(["extra", "learner/extra.bin", ".hidden"]))).write_bytes(b"x"),
        lambda: path.write_bytes(draw(st.binary(max_size=50))),
        lambda: link(draw(st.sampled_from(["/dev/zero", "/etc/passwd", "nowhere", "..", path.name]))),
        lambda: link(shutil.copy(path, folder.parent / f"copy-{path.name}")),
        lambda: (path.unlink(), path.mkdir()),
        lambda: replace(folder / MANIFEST, json.dumps(draw(VALUES), default=str)),
        lambda: (path.write_bytes(other.read_bytes()), other.write_bytes(data)),
        lambda: path.rename(path.with_name("moved")),
        lambda: shutil.rmtree(folder),
    ]
    draw(st.sampled_from(changes))()


@given(data=st.data())
@cases(40)
def test_no_changed_checkpoint_is_ever_the_one_to_resume_from(fresh, template, data):
    COUNTED["checkpoints"] += 1
    run = fresh()
    for step in (2, 4, 6):
        folder = run.checkpoint_folder(step)
        for _ in range(data.draw(st.integers(0, 2))):
            if folder.exists() and any(p.is_file() and not p.is_symlink() for p in folder.rglob("*")):
                damage(folder, data.draw)
    whole = [step for step in (2, 4, 6) if unchanged(run.checkpoint_folder(step), template)]
    left = [step for step in (2, 4, 6) if run.checkpoint_folder(step).exists()]
    with deadline():
        found, message = attempt(run.find_resume_point)
    if message is not None:
        assert left
        assert not whole
        assert "damaged" in message
        return
    if found is None:
        assert not left
    else:
        assert int(found.name[5:]) == max(whole)
        assert content(found) == content(template / "checkpoints" / found.name)


def unchanged(folder, template):
    """By its own reading of the files, without the code under test."""
    if not folder.is_dir() or any(p.is_symlink() for p in folder.rglob("*")):
        return False
    return content(folder) == content(template / "checkpoints" / folder.name)


CHANGED = st.tuples(st.sampled_from([*STATE, "extra"]), VALUES).map(lambda change: {**STATE, change[0]: change[1]})
AS_JSON = st.one_of(CHANGED, VALUES).map(lambda value: json.dumps(value).encode())


@given(data=st.one_of(AS_JSON, st.binary(max_size=400), st.just(b"[" * 100_000)))
@cases(50)
def test_a_state_of_the_wrong_kind_is_refused_by_its_file(fresh, data):
    COUNTED["states"] += 1
    folder = fresh().checkpoint_folder(2)
    (folder / "state.json").write_bytes(data)
    found, message = attempt(lambda: checkpoint.read_state(folder, ("f",), Path("run")))
    if message is not None:
        assert "state.json" in message or "belongs to another" in message
        return
    assert isinstance(found, checkpoint.SavedState) and "extra" not in json.loads(data)
    assert type(found.step) is int and found.step >= 0
    assert tuple(field.name for field in dataclasses.fields(training.Totals)) == checkpoint.TOTALS


@given(data=st.data())
@cases(30)
def test_damaged_tensors_are_refused_by_their_file(fresh, data):
    COUNTED["tensor files"] += 1
    path, draw = fresh().checkpoint_folder(2) / "learner" / "model.safetensors", data.draw
    raw = path.read_bytes()
    header = json.dumps(draw(VALUES), default=str).encode()
    damaged = [
        raw[: draw(st.integers(0, len(raw) - 1))],
        flipped(raw, draw),
        draw(st.binary(max_size=200)),
        len(header).to_bytes(8, "little") + header + raw[-36:],
        draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little") + raw[8:],
    ]
    path.write_bytes(draw(st.sampled_from(damaged)))
    read, dtype = convert.read_tensors, torch.float32  # imports torch, which the deadline is not for
    with deadline():
        found, message = attempt(lambda: read(path, {"a": (2, 3), "b": (3,)}, dtype))
    if message is not None:
        assert "model.safetensors" in message
        return
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"a": (2, 3), "b": (3,)}


CONFIGS = st.one_of(
    st.binary(max_size=200),
    VALUES.map(lambda value: json.dumps(value, default=str).encode()),
    st.sampled_from(
        [b"", b"[", b"\t", b"a: !!bool x", b"2001-99-99: 1", b"a: &a [*a]", b"!!python/object:os.system x", b"[" * 9999]
    ),
)


@given(data=CONFIGS, name=st.sampled_from(["config.yaml", "metrics.jsonl", "evaluations.jsonl", "status.json",
                                            "environment.json", "heartbeat", "STOP"]))  # fmt: skip
@cases(40)
def test_damaged_files_of_a_run_directory(fresh, data, name, caplog, monkeypatch):
    COUNTED["run folders"] += 1
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(provenance, "find_commit", lambda _folder: None)  # git takes longer than all the rest
    run = fresh()
    run.open(CONFIG, resume=False)
    run.close()
    path = run.path / name
    path.write_bytes(data)
    again = RunDir(run.path)
    with deadline():
        if name == "config.yaml":
            with pytest.raises(UserError, match=r"config\.yaml|another configuration"):
                again.open(CONFIG, resume=True)
            assert path.read_bytes() == data, "evidence is kept"
            return
        again.open(CONFIG, resume=True)
        again.rewind(3)
        again.close()
    for kept in ("metrics.jsonl", "evaluations.jsonl"):
        assert all(isinstance(line, dict) and line.get("step", 0) <= 3 for line in read_lines(run.path / kept))
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG


@pytest.mark.parametrize("place", ["file", "/dev/null/x", "x" * 300, "nul\0", "caf\udce9", "/proc/1/x", "loop"])
def test_run_directories_that_cannot_be(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    run = RunDir(Path(place))
    _, message = attempt(lambda: run.open(CONFIG, resume=False))
    run.close()
    if message is None:
        assert place == "caf\udce9", "a name that is not UTF-8 is still a name"
    else:
        assert "run_dir=" in message
