"""Configurations and overrides as people, editors and file systems break them.

Real files of configs/ are resolved, changed at random places (keys dropped, misspelled, repeated; values of every wrong
type and size; lists for sections, deep nesting, anchors) and as bytes (tabs, truncation, other encodings, binary), and
given to `train`, `check` and `plan`, with and without overrides. `train` is stopped where it would start processes.
"""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.config.load import load_yaml, resolve_config
from tests.fuzz.harness import TEXTS, VALUES, cases, check, command
from tests.rules.check.recipes import VALID

ROOT = Path(__file__).resolve().parents[2]
CPU = {
    path.stem: resolve_config(load_yaml(path))
    for path in (ROOT / "configs" / "cpu").glob("*.yaml")
    if path.stem != "base"
}
FEW = {"num_prompts_per_step": 8, "max_num_steps": 100, "val_period": 10}  # `plan` simulates whole steps
RECIPE = {
    **VALID,
    "grpo": {**VALID["grpo"], **FEW},
    "policy": {**VALID["policy"], "train_global_batch_size": 32},
}
DOCUMENTS: dict[str, Any] = {**CPU, "recipe": RECIPE}
OVERLAYS = sorted((ROOT / "configs").glob("*.yaml"))[:1]
SECTIONS = sorted({key for document in DOCUMENTS.values() for key in document})
SAID = [*SECTIONS, "configuration", "size", "--run"]
COMMANDS = (("train",), ("check", "--no-verifier"), ("plan",))


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch, tmp_path):
    """`train` ends with code 0 where it would start Ray; problems of generated tasks are few; no step is simulated."""
    from nemo_ada.cpu import trainer
    from nemo_ada.tasks import reasoning

    def stack(_config):
        raise SystemExit(0)

    few = {"size": 100, "train_prompts": 8, "heldout_prompts": 4}
    original = reasoning.ReasoningTask.__init__

    def small(self, settings, *args, **kwargs):
        for name, number in few.items():
            object.__setattr__(settings, name, min(getattr(settings, name), number))
        original(self, settings, *args, **kwargs)

    monkeypatch.setattr(trainer, "Stack", stack)
    monkeypatch.setattr(reasoning.ReasoningTask, "__init__", small)
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "configs").symlink_to(ROOT / "configs")


def mutated(document, draw):
    """The document with one change at a random place."""
    node, path = document, []
    while isinstance(node, dict) and node and (not path or draw(st.integers(0, 3))):
        path.append(draw(st.sampled_from(sorted(node, key=str))))
        node = node[path[-1]]
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    match draw(st.sampled_from(["value", "value", "drop", "rename", "wrap", "deep", "extra"])):
        case "value":
            parent[key] = draw(VALUES)
        case "drop":
            del parent[key]
        case "rename":
            text = str(key)
            at = draw(st.integers(0, len(text)))
            parent[text[:at] + draw(st.sampled_from(["", "x", "_", text[-1:]])) + text[at + 1 :]] = parent.pop(key)
        case "wrap":
            parent[key] = [parent[key]] * draw(st.integers(1, 2))
        case "deep":
            for _ in range(draw(st.sampled_from([3, 30, 300]))):
                parent[key] = {draw(st.just(str(key))): parent[key]}
        case "extra":
            parent[draw(st.one_of(TEXTS, st.integers(), st.none(), st.booleans()))] = draw(VALUES)
    return document


TAGS = ["!!bool x", "!!int x", "!!float x", "!!timestamp x", "!!python/object:os.system x", "!!set {a}", "!x y",
        "!!binary ???", "2001-99-99", "190:20:30", "!!python/name:os.system"]  # fmt: skip
BOMB = ["x_a: &a [x, x, x, x, x, x, x, x, x]"]
BOMB += [f"x_{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghi")]
LINES = ["\tx: 1", "x: '\0'", "x_loop: &l {again: *l}", "x_deep: " + "[" * 50, "x_deep: " + "[" * 5000, "<<: 5",
         *(f"x_tag: {tag}" for tag in TAGS), "\n".join(BOMB)]  # fmt: skip


def spoiled(text, draw):
    """The text as bytes, with one kind of damage or none."""
    lines = text.splitlines()
    at = draw(st.integers(0, len(lines)))
    repeated = lines[at - 1] if lines else "a: 1\na: 2"
    inserted = "\n".join([*lines[:at], draw(st.sampled_from([*LINES, repeated])), *lines[at:]])
    data = text.encode("utf-8", "surrogatepass")
    place = draw(st.integers(0, len(data)))
    damaged = [
        *[data] * 4,
        *[inserted.encode("utf-8", "surrogatepass")] * 4,
        data[:place],
        data[:place] + draw(st.binary(max_size=20)) + data[place:],
        b"\xef\xbb\xbf" + data,
        data.replace(b"\n", b"\r\n"),
        text.encode("utf-16", "surrogatepass"),
        (text + "\nname: gr\u00fc\u00dfe\n").encode("latin-1", "replace"),
    ]
    return draw(st.sampled_from(damaged))


@st.composite
def files(draw):
    document = copy.deepcopy(DOCUMENTS[draw(st.sampled_from(sorted(DOCUMENTS)))])
    for _ in range(draw(st.integers(0, 3))):
        if isinstance(document, dict) and document:
            document = mutated(document, draw)
    try:
        text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
    except (yaml.YAMLError, RecursionError):
        text = repr(document)
    return spoiled(text, draw)


def run(path, which, overrides, kind):
    name, *options = COMMANDS[which]
    return command([name, *options, str(path), *overrides], kind)


@given(data=files(), which=st.integers(0, 2))
@cases(15)
def test_a_changed_file_is_used_or_refused_with_its_name_or_key(data, which):
    path = Path("changed.yaml")
    path.write_bytes(data)
    codes = (0, 1, 2) if COMMANDS[which][0] == "check" else (0, 2)
    check(run(path, which, [], "changed configs"), codes=codes, said=[path.name, *SAID])


def leaves(document, prefix=""):
    return [f"{prefix}{key}" for key, value in document.items() if not isinstance(value, dict)] + [
        name for key, value in document.items() if isinstance(value, dict) for name in leaves(value, f"{prefix}{key}.")
    ]


KEYS = [*sorted({key for document in CPU.values() for key in leaves(document)}), "policy", "reinforce_ada.sampling"]
BROKEN = st.sampled_from(["=", "", "=,", "=a,b", "=range(1,10)", "={a:1,", "=[1,2", "=glob(*)", "=${x}", "='x", "=!!x"])


@st.composite
def overrides(draw):
    made = []
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.one_of(st.sampled_from(KEYS), st.sampled_from(KEYS).map(lambda k: k[:-1] + "x"), TEXTS))
        sign = draw(st.sampled_from(["", "", "", "+", "++", "~", "+-"]))
        value = draw(st.one_of(BROKEN, VALUES.map(lambda v: f"={v}")))
        made.append((sign + key + value).replace("\0", ""))
    return [text for text in made if not text.startswith("-")] or ["x"]


@given(changes=overrides(), which=st.integers(0, 2), name=st.sampled_from(sorted(CPU)))
@cases(15)
def test_overrides_are_used_or_refused(changes, which, name):
    path = ROOT / "configs" / "cpu" / f"{name}.yaml"
    codes = (0, 1, 2) if COMMANDS[which][0] == "check" else (0, 2)
    check(run(path, which, changes, "overrides"), codes=codes, said=["override", *SAID])


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
@pytest.mark.parametrize("which", range(3))
def test_a_recipe_without_its_parent_says_what_to_set(path, which):
    check(run(path, which, [], "recipes"), codes=(2,), said=["NEMO_RL_HOME", "NeMo-RL"])


def test_parents_that_lead_nowhere_or_back(tmp_path):
    parents = {"self": "self.yaml", "gone": "gone/gone.yaml", "folder": ".", "number": 5, "map": {"a": 1}}
    for name, parent in parents.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"defaults": parent, "grpo": {}}))
        check(run(path, 0, [], "parents"), codes=(2,), said=[name])
    for index in range(80):
        (tmp_path / f"c{index}.yaml").write_text(f"defaults: c{index + 1}.yaml\n")
    check(run(tmp_path / "c0.yaml", 0, [], "parents"), codes=(2,), said=["files deep"])


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", ".", "/proc/self/mem", "no/such", "x" * 300])
def test_places_that_are_no_configuration(place):
    for which in range(3):
        check(run(Path(place), which, [], "places"), codes=(2,), said=["configuration", "mapping"])
