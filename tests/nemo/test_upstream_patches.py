"""The patches of recipes/upstream for v0.7.0 apply, and NeMo-RL's functions return the same to the bit with them.

The functions run out of their modules, which need vLLM. With `pytest -s` the first test prints microseconds per token.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import os
import shutil
import subprocess
import sys
import time
import traceback
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nemo_support.compat import why_not_importable

PATCHES = Path(__file__).parents[2] / "recipes/upstream"
HOME = os.environ.get("NEMO_RL_HOME")
SYNC, ASYNC = (f"nemo_rl/models/generation/vllm/{name}.py" for name in ("vllm_worker", "vllm_worker_async"))
MOVES = {
    "nemo_rl/models/policy/workers/megatron_policy_worker.py": "move_optimizer",
    "nemo_rl/models/policy/workers/dtensor_policy_worker.py": "move_optimizer_to_device",
    "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py": "move_optimizer_to_device",
    "nemo_rl/models/value/workers/megatron_value_worker.py": "move_optimizer",
    "nemo_rl/models/value/workers/dtensor_value_worker_v2.py": "move_optimizer_to_device",
}
pytestmark = pytest.mark.skipif(not HOME, reason="NEMO_RL_HOME names no checkout of NeMo-RL")
PROMPT, TOKENS, ROWS, REPEATS = 5, 700, 8, 9


class Columns(dict):
    """BatchedDataDict, as far as the functions need it."""

    def __class_getitem__(cls, item):
        return cls


def applies(patch, tree):
    """Whether a patch would apply to a tree, as git says it."""
    check = ["git", "apply", "--check", str(PATCHES / f"{patch}.patch")]
    return subprocess.run(check, cwd=tree, capture_output=True, text=True, check=False)


def checkouts(tmp_path, patch, files):
    """The files as they are, and with the patch."""
    for file in files:
        for folder in ("before", "after"):
            (tmp_path / folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(HOME) / file, tmp_path / folder / file)
    found = subprocess.run(
        ["git", "apply", str(PATCHES / patch)], cwd=tmp_path / "after", capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    for file in files:
        assert (tmp_path / "after" / file).read_text() != (tmp_path / "before" / file).read_text()
    return tmp_path / "before", tmp_path / "after"


def function(path, name, **names):
    """A function or method of a file, with these names around it."""
    parts = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    parts[0].decorator_list = []
    names |= {"torch": torch}
    code = compile(ast.Module(parts[:1], []), str(path), "exec", __future__.annotations.compiler_flag)
    exec(code, names)
    return names[name]


def outputs():
    """Finished requests. Some tokens have no log-prob, some another token's, and some responses have none at all."""
    random = np.random.default_rng(3)
    rows = []
    for row in range(ROWS):
        tokens = random.integers(0, 1000, TOKENS - row).tolist()
        logprobs = [{token: SimpleNamespace(logprob=float(value))} for token, value in zip(
            tokens, random.normal(size=len(tokens)), strict=True)]  # fmt: skip
        if row == 1:
            logprobs[3], logprobs[4] = None, {}
        done = SimpleNamespace(token_ids=tokens, logprobs=None if row == 2 else logprobs, finish_reason="length")
        rows.append(SimpleNamespace(outputs=[done]))
    return rows


def worker(rows):
    """What the two functions use of NeMo-RL's worker."""
    left = iter(rows)

    async def generate(**_):
        yield next(left)

    llm = SimpleNamespace(
        generate=generate, llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=4096, model="m"))
    )
    vllm = {"async_engine": True, "max_model_len": 4096}
    return SimpleNamespace(
        cfg={"vllm_cfg": vllm, "_pad_token_id": 0, "max_new_tokens": TOKENS}, llm=llm,
        _merge_stop_strings=lambda *_: None, _build_sampling_params=lambda **_: None,
        _return_routed_experts_enabled=lambda: False,
    )  # fmt: skip


AROUND = {
    "BatchedDataDict": Columns,
    "GenerationOutputSpec": None,
    "verify_right_padding": lambda *_, **__: (True, None),
    "format_prompt_for_vllm_generation": lambda *_: None,
    "pad_and_align_routed_expert_indices": lambda *_, **__: (None, {}),
    "asyncio": asyncio,
    "uuid": uuid,
    "traceback": traceback,
}


def asynchronous(folder, rows):
    """The asynchronous worker's function for each response, as one function without arguments."""
    generate = function(folder / ASYNC, "generate_async", **AROUND)

    async def all_rows():
        mine = worker(rows)
        data = Columns(input_ids=torch.arange(PROMPT)[None], input_lengths=torch.tensor([PROMPT]))
        return [found for _ in rows async for _, found in generate(mine, data)]

    loop = asyncio.new_event_loop()  # asyncio.run would print the results into a signal handler's name
    return lambda: loop.run_until_complete(all_rows())


def synchronous(folder, rows):
    """The synchronous worker's function for all responses, as one function without arguments."""
    generate, mine = function(folder / SYNC, "generate", **AROUND), worker(rows)
    mine.llm.generate = lambda *_, **__: rows
    data = Columns(input_ids=torch.arange(PROMPT).repeat(ROWS, 1), input_lengths=torch.full((ROWS,), PROMPT))
    return lambda: [generate(mine, data)]


@pytest.mark.parametrize("run", [asynchronous, synchronous])
def test_logprobs_are_copied_at_once_and_equal_to_the_bit(tmp_path, run):
    if applies("logprob-copy-main", HOME).returncode == 0:
        pytest.skip("this NeMo-RL is main, which has a patch of its own (logprob-copy-main)")
    rows = outputs()
    versions = [run(folder, rows) for folder in checkouts(tmp_path, "logprob-copy.patch", [SYNC, ASYNC])]
    before, after = (version() for version in versions)
    seconds = [[], []]
    for _ in range(REPEATS):
        for times, version in zip(seconds, versions, strict=True):
            started = time.process_time()
            version()
            times.append(time.process_time() - started)
    microseconds = [1e6 * float(np.median(times)) / (ROWS * TOKENS) for times in seconds]
    assert len(before) == len(after) and any(one["logprobs"].abs().sum() > 0 for one in before)
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, column in one.items():
            assert torch.equal(column, other[name]) and column.dtype == other[name].dtype, name
    print(f"{run.__name__}: {microseconds[0]:.2f} microseconds per token before, {microseconds[1]:.2f} after")


@pytest.mark.slow
def test_mains_patch_applies_and_its_own_unit_test_runs_with_and_without_it(tmp_path, main):
    """The results are those of before, so the test passes twice."""
    if reason := why_not_importable():
        pytest.skip(reason)
    shutil.copytree(main / "nemo_rl", tmp_path / "nemo_rl")
    unit = "tests/unit/models/generation/test_vllm_logprob_copy.py"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for only in (["--include=tests/*"], ["--exclude=tests/*"]):
        command = ["git", "apply", *only, str(PATCHES / "logprob-copy-main.patch")]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), unit]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "8 passed" in done.stdout, done.stdout[-3000:]
    for file in (SYNC, ASYNC):
        assert (tmp_path / file).read_text() != (main / file).read_text()


def test_the_optimizer_moves_without_blocking_and_waits_once(tmp_path, monkeypatch):
    waits, moved = [], []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(moved)))

    class Moment(torch.Tensor):
        is_cuda = True

        def to(self, device, non_blocking=False):
            moved.append((device, non_blocking))
            return self

    _, after = checkouts(tmp_path, "optimizer-move.patch", MOVES)
    for file, name in MOVES.items():
        waits.clear()
        moved.clear()
        state = {name: {"exp_avg": torch.ones(2).as_subclass(Moment), "step": 1} for name in "ab"}
        optimizer = SimpleNamespace(state=state, _get_state=lambda state=state: state)
        around = {"ChainedOptimizer": type(optimizer), "DTensor": Moment}
        function(after / file, name, **around)(SimpleNamespace(optimizer=optimizer), "cpu")
        assert moved == [("cpu", True)] * 2 and waits == [2], file


@pytest.mark.parametrize("tree", ["RL-main", "v0.8.0"])
@pytest.mark.parametrize("patch", ["named-parts", "logprob-copy-main", "optimizer-move"])
def test_the_patches_to_send_apply_to_the_newest_trees_at_hand(patch, tree):
    """v0.8.0 is the tree of recipes/upstream/release_tree.py."""
    newest = Path(HOME).parent / tree
    if not (newest / "nemo_rl").is_dir():
        pytest.skip(f"no tree in {newest}")
    done = applies(patch, newest)
    assert done.returncode == 0, done.stderr
