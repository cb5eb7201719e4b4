"""The contract of what our code reads of NeMo-RL's objects, and not only of what it calls.

1. Our own source tells which attributes these are, and no class of ours that inherits from NeMo-RL's is left out.
2. A checkout's class that lacks one is named with our file, and nothing is said where any attribute may come.
3. Every attribute is found when it is taken out of a real checkout (with NEMO_RL_HOME), and of the vLLM that is here.
"""

import ast
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from nemo_ada.rules.facts import attributes
from nemo_ada.rules.facts.attributes import Reader, find_missing, list_reads
from nemo_ada.rules.facts.checkout import Checkout
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import find_misfits

READERS = attributes.list_readers()
FOREIGN = frozenset().union(*attributes.FOREIGN.values())  # what no checkout can lose
BASES = ("Upstream", "PLAIN", "original")  # names under which our files know a class of NeMo-RL
HOME = Path(os.environ.get("NEMO_RL_HOME", ".missing"))

COLLECTOR = """
class Base:
    def start_collection(self, dataloader):
        self.dataloader, self.running = dataloader, True
class AsyncTrajectoryCollector(Base):
    def __init__(self, config):
        self.master_config = config
        with lock() as self.replay_buffer:
            pass
    def _process_batch(self, batch): ...
"""


def write(folder: Path, text: str) -> Checkout:
    """A checkout whose collector has this source."""
    package = folder / "nemo_rl/algorithms/async_utils"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(text)
    return Checkout(folder)


def test_an_attribute_that_is_read_and_not_made_is_theirs():
    (reader,) = attributes.COLLECTOR_OF_GROUPS
    found = list_reads(reader)
    assert {"_refit_pause_cleared", "replay_buffer", "_inflight_sema", "_run_prompt_group_worker"} <= found
    assert not found & {"_groups", "_failed", "_here", "saved", "_prepare", "_hand_over"}


def test_what_is_asked_for_with_hasattr_may_be_missing():
    found = list_reads(Reader("nemo/launch/command.py", "x", names=("checkpointer",)))
    assert "checkpoint_dir" in found
    assert "shutdown" not in found


@pytest.mark.parametrize("file", sorted((attributes.OURS / "nemo").rglob("*.py")), ids=lambda path: path.stem)
def test_every_class_that_inherits_from_theirs_is_read(file):
    tree = ast.parse(file.read_text())
    theirs = {*BASES, *(alias.asname or alias.name for node in ast.walk(tree)
                        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nemo_rl")
                        for alias in node.names)}  # fmt: skip
    name = str(file.relative_to(attributes.OURS))
    known = {one for reader in READERS if reader.file == name for one in reader.classes}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in theirs for base in node.bases):
            assert node.name in known or not list_reads(Reader(name, "x", classes=(node.name,))), node.name


def test_a_lost_attribute_is_named_with_the_file_that_reads_it(tmp_path):
    (reader,) = attributes.COLLECTOR_OF_GROUPS
    lost = dict(find_missing(write(tmp_path, COLLECTOR), (reader,)))
    assert set(lost.values()) == {"nemo/asynchronous/actors.py"}
    names = {name.rpartition(".")[2] for name in lost}
    assert names == list_reads(reader) - {
        "start_collection", "dataloader", "running", "master_config", "replay_buffer", "_process_batch",
    }  # fmt: skip


@pytest.mark.parametrize("text", [
    COLLECTOR.replace("class Base:", "from elsewhere import Any\nclass Base(Any):"),
    COLLECTOR + "    def __getattr__(self, name): ...\n",
    "from elsewhere import AsyncTrajectoryCollector",
])  # fmt: skip
def test_a_class_that_may_have_any_attribute_is_not_judged(text, tmp_path):
    assert list(find_missing(write(tmp_path, text), attributes.COLLECTOR_OF_GROUPS)) == []


@pytest.mark.skipif(not (HOME / "nemo_rl").is_dir(), reason="NEMO_RL_HOME names no checkout")
def test_every_attribute_that_a_real_checkout_loses_is_named(tmp_path):
    shutil.copytree(HOME / "nemo_rl", tmp_path / "nemo_rl", ignore=shutil.ignore_patterns("*.pyc"))
    whole, tried = Checkout(tmp_path), 0
    texts = {path: path.read_text() for path in (tmp_path / "nemo_rl").rglob("*.py")}
    for reader in READERS:
        there = attributes.list_attributes(whole, reader.of)
        for name in sorted(list_reads(reader) & (there or set()) - FOREIGN):
            changed = {path: text for path, text in texts.items() if re.search(rf"\b{name}\b", text)}
            for path, text in changed.items():
                path.write_text(re.sub(rf"\b{name}\b", f"{name}_of_another_name", text))
            assert f"{reader.of}.{name}" in dict(find_missing(Checkout(tmp_path), (reader,)))
            tried += 1
            for path, text in changed.items():
                path.write_text(text)
    assert tried > 30


@pytest.mark.skipif(not (HOME / "nemo_rl").is_dir(), reason="NEMO_RL_HOME names no checkout")
def test_misfits_name_attributes_beside_functions(tmp_path):
    shutil.copytree(HOME / "nemo_rl", tmp_path / "nemo_rl", ignore=shutil.ignore_patterns("*.pyc"))
    before = set(find_misfits(Checkout(tmp_path), Loop.ASYNC))
    for path in (tmp_path / "nemo_rl/algorithms/async_utils").rglob("*.py"):
        path.write_text(path.read_text().replace("_refit_pause_cleared", "_open"))
    (new,) = set(find_misfits(Checkout(tmp_path), Loop.ASYNC)) - before
    assert "AsyncTrajectoryCollector._refit_pause_cleared does not exist, and nemo_ada/nemo/asynch" in new


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (extra: embedded)")
def test_what_we_read_of_vllm_is_there():
    root = Path(next(iter(find_spec("vllm").submodule_search_locations))).parent
    checkout = Checkout(root, "vllm")
    for reader in attributes.ENGINE:
        assert list_reads(reader) <= attributes.list_attributes(checkout, reader.of), reader
