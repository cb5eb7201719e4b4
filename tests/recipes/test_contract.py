"""recipes/upstream/contract.py: it finds what a plug-in of NeMo-RL would fail on.

1. On small checkouts: names, parameters, returned values, keys, metrics, examples. Equal checkouts have none.
2. On NeMo-RL v0.7.0 and main, where they are at hand: the collector's change and the third value of the baselines.
"""

import json
import os
import shutil
from pathlib import Path

import contract
import pytest

from nemo_ada.errors import UserError
from nemo_ada.rules.facts import attributes
from nemo_ada.rules.facts import checkout as source
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import find_misfits

ROOT = Path(__file__).resolve().parents[2]

LOOP = """
from typing import TypedDict
from nemo_rl.utils import split, Tool
class Part(TypedDict):
    size: int
class MasterConfig:
    part: Part
    steps: int = 3
class GRPOSaveState(TypedDict):
    step: int
def grpo_train(a, b=1, *, c):
    metrics = {"loss": 1}
    metrics["reward"] = 2
"""
UTILS = """
def split(x):
    return x, 1
class Base:
    def work(self, x):
        self.busy = True
        return None
class Tool(Base):
    def __init__(self, y): ...
"""


def checkout(folder: Path, loop: str = LOOP, utils: str = UTILS) -> Path:
    """A checkout of two modules and one example."""
    for name, text in {
        "nemo_rl/__init__.py": "",
        "nemo_rl/utils.py": utils,
        "nemo_rl/algorithms/grpo.py": loop,
        "examples/configs/base.yaml": "grpo: {seed: 1}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


NAMES = [
    contract.Use(f"nemo_rl.{name}", "a plug-in")
    for name in (
        "algorithms.grpo.grpo_train",
        "algorithms.grpo.split",
        "algorithms.grpo.Tool.work",
        "utils.Tool",
        "utils.Tool.busy",
    )
]
BASE = Path("examples/configs/base.yaml")


def found(folder: Path, **changed: str) -> set[tuple[str, str]]:
    old, new = checkout(folder / "old"), checkout(folder / "new", **changed)
    result = contract.differences(source.Checkout(old), source.Checkout(new), NAMES, [BASE])
    return {(one.kind, one.what) for one in result}


def test_equal_checkouts_have_no_difference(tmp_path):
    assert found(tmp_path) == set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("return x, 1", "return x, 1, 2", ("returned values", "nemo_rl.algorithms.grpo.split")),
        ("return x, 1", "both = (x, 1, 2)\n    return both", ("returned values", "nemo_rl.algorithms.grpo.split")),
        ("def split(x):", "async def split(x):", ("returned values", "nemo_rl.algorithms.grpo.split")),
        ("def work(self, x)", "def work(self, x, z)", ("parameters", "nemo_rl.algorithms.grpo.Tool.work")),
        ("self.busy", "self.working", ("name", "nemo_rl.utils.Tool.busy")),
        ("def work", "def other", ("name", "nemo_rl.algorithms.grpo.Tool.work")),
        ("def __init__(self, y)", "def __init__(self)", ("parameters", "nemo_rl.utils.Tool")),
        ("a, b=1, *, c", "a, b=1, *, c=2", ("parameters", "nemo_rl.algorithms.grpo.grpo_train")),
        ("size: int", "size: str", ("key", "part.size")),
        ("steps: int = 3", "steps: int = 4", ("key", "steps")),
        ("step: int\n", "step: int\n    epoch: int\n", ("save state", "epoch")),
        ('"reward"', '"mean_reward"', ("metric", "reward")),
    ],
)
def test_a_change_is_found(tmp_path, old, new, expected):
    assert UTILS.count(old) + LOOP.count(old) == 1
    assert expected in found(tmp_path, loop=LOOP.replace(old, new), utils=UTILS.replace(old, new))


def test_a_name_that_moved_behind_a_re_export_is_no_difference(tmp_path):
    loop = LOOP.replace("from nemo_rl.utils import split, Tool", UTILS)
    assert found(tmp_path, loop=loop) == set()


def test_an_example_that_changed_or_went_is_found(tmp_path):
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new")
    (new / BASE).write_text("grpo: {seed: 2}", encoding="utf-8")
    one, two = source.Checkout(old), source.Checkout(new)
    (difference,) = contract.differences(one, two, [], [BASE])
    assert (difference.what, difference.old, difference.new) == (f"{BASE}: grpo.seed", "1", "2")
    (new / BASE).unlink()
    (difference,) = contract.differences(one, two, [], [BASE])
    assert (difference.old, difference.new) == ("exists", "does not exist")


def test_the_command_reads_a_plug_ins_list_and_ends_with_3(tmp_path, capsys, monkeypatch):
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new", utils=UTILS.replace("x, 1", "x, 1, 2"))
    names = tmp_path / "names.yaml"
    names.write_text("[nemo_rl.utils.split]", encoding="utf-8")
    arguments = [str(old), str(new), "--uses", str(names), "--json", str(tmp_path / "out.json")]
    assert contract.main(arguments) == 3
    printed = capsys.readouterr().out
    assert "old: 2 values" in printed and "new: 3 values" in printed
    (difference,) = json.loads((tmp_path / "out.json").read_text())["differences"]
    assert difference["what"] == "nemo_rl.utils.split"
    monkeypatch.setenv("NEMO_RL_HOME", str(old))
    assert contract.main([str(old), "--uses", str(names)]) == 0
    assert contract.main([str(old)] * 3) == contract.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "more than two checkouts" in said and "holds no folder nemo_rl" in said


@pytest.mark.parametrize("content", ["[]", "[torch.nn.Linear]", "{"])
def test_a_list_without_names_of_nemo_rl_is_refused(tmp_path, content):
    path = tmp_path / "names.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError):
        contract.listed(path)


def test_a_folder_without_nemo_rl_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no folder nemo_rl"):
        source.Checkout(tmp_path)


def test_our_own_list_has_what_the_hooks_replace_and_subclass():
    names = {use.name for use in contract.own()}
    assert "nemo_rl.algorithms.utils.calculate_baseline_and_std_per_prompt" in names
    assert "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector._run_prompt_group_worker" in names


def test_our_own_list_has_every_attribute_that_our_code_reads():
    where = {use.name: use.where for use in contract.own()}
    for reader in attributes.list_readers():
        for name in attributes.list_reads(reader):
            assert f"{reader.of}.{name}" in where
    collector = "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector"
    assert where[f"{collector}._refit_pause_cleared"] == "read by nemo_ada/nemo/asynchronous/actors.py"


def upstream() -> tuple[Path, Path]:
    """v0.7.0 and main; main is looked for beside v0.7.0."""
    old = Path(os.environ.get("NEMO_RL_HOME") or Path.home() / "nemo-rl" / "RL")
    new = Path(os.environ.get("NEMO_RL_MAIN_HOME") or old.parent / "RL-main")
    if not (old / "nemo_rl").is_dir() or not (new / "nemo_rl").is_dir():
        pytest.skip(f"needs NeMo-RL v0.7.0 in {old} and main in {new}")
    return old, new


def test_between_v070_and_main_with_the_change_of_v080_both_breaks_are_found(tmp_path):
    """Pull request 3000 took the collector's method away; pull request 4158 added the baselines' third value."""
    old, new = upstream()
    patched = tmp_path / "patched"
    shutil.copytree(new / "nemo_rl", patched / "nemo_rl")
    utils = patched / "nemo_rl/algorithms/utils.py"
    text = utils.read_text(encoding="utf-8")
    assert text.count("    return baseline, std\n") == 1
    utils.write_text(
        text.replace("    return baseline, std\n", "    return baseline, std, std == 0\n"), encoding="utf-8"
    )
    result = contract.differences(source.Checkout(old), source.Checkout(patched), contract.own())
    kinds = {(one.kind, one.what.rpartition(".")[2]): one for one in result}
    assert ("name", "_run_prompt_group_worker") in kinds and ("name", "_refit_pause_cleared") not in kinds
    baselines = kinds["returned values", "calculate_baseline_and_std_per_prompt"]
    assert (baselines.old, baselines.new) == ("2 values", "3 values")


def test_a_checkout_without_a_single_controller_has_one_misfit(tmp_path):
    assert len(list(find_misfits(source.Checkout(checkout(tmp_path)), Loop.CONTROLLER))) == 1
