"""Which attributes of NeMo-RL's objects our code reads, and which of them a checkout's classes do not have.

A function that goes away is found by its name (upstream.py). An attribute such as `self._max_rollout_turns` of a base
class is written nowhere as a name that somebody imports, so its loss would show in a run's first batch. Here it is read
twice as source: in our own files, where an attribute is used and not made, and in the checkout's class. Only the table
of objects is kept by hand, because Python's source does not tell the class of a variable.
"""

from __future__ import annotations

import ast
import functools
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from nemo_ada.rules.facts.checkout import Checkout, list_made
from nemo_ada.run.files import text_of

OURS = Path(__file__).resolve().parents[2]
_COLLECTOR = "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector"
_CONFIG = "nemo_rl.algorithms.grpo.MasterConfig"
_CONTROLLER_UTILS = "nemo_rl.algorithms.single_controller_utils"
_SAVES, _BATCH = "nemo_rl.utils.checkpoint.CheckpointManager", "nemo_rl.distributed.batched_data_dict.BatchedDataDict"
_ACTORS, _STOP = "nemo/asynchronous/actors.py", "nemo/launch/stop_and_save.py"
_PLUG_IN, _CONTROLLER = "nemo/single_controller.py", "nemo/launch/controller.py"
FOREIGN: Mapping[str, frozenset[str]] = {
    "UserDict": frozenset(dir(UserDict)), "BaseModel": frozenset(dir(BaseModel)),
    **dict.fromkeys(
        ("object", "ABC", "Protocol", "Generic", "TypedDict", "NamedTuple", "Struct", "Enum", "EngineClient"),
        frozenset(dir(object)),
    ),
}  # fmt: skip
"""Base classes from elsewhere -> what they bring. A class with any other one may have any attribute."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Where our code holds an object of NeMo-RL.

    Attributes:
        file: our file, below nemo_ada.
        of: the class of the object in NeMo-RL.
        classes: our classes that inherit from it. The first one that defines an attribute makes it ours.
        names: expressions in the file that are such an object.
    """

    file: str
    of: str
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


LAUNCHER = (
    Reader(_STOP, _SAVES, names=("checkpointer",)),
    Reader(_STOP, "nemo_rl.algorithms.grpo.TimeoutChecker", classes=("JobTimeout",)),
    Reader("nemo/launch/checkpoint.py", _SAVES, names=("checkpointer",)),
    Reader("nemo/launch/command.py", _SAVES, names=("checkpointer", "parts['checkpointer']")),
)
LOOPS = (
    Reader(_STOP, "nemo_rl.models.policy.lm_policy.Policy", names=("policy",)),
    Reader(_STOP, "nemo_rl.models.generation.vllm.VllmGeneration", names=("parts['policy_generation']",)),
    Reader("nemo/launch/command.py", _CONFIG, names=("master_config",)),
    Reader("nemo/launch/records.py", "nemo_rl.utils.logger.Logger", names=("logger",)),
    Reader("nemo/rollouts/call.py", _BATCH, names=("batch", "repeated_batch")),
)
COLLECTOR_OF_GROUPS = (Reader(_ACTORS, _COLLECTOR, classes=("PerGroup", "Collector")),)
COLLECTOR_OF_BATCHES = (
    Reader(_ACTORS, _COLLECTOR, classes=("PerBatch", "Collector")),
    Reader(_ACTORS, "nemo_rl.experience.rollouts.RolloutGroupResult", names=("given['rollout_result']",)),
)
BUFFER = (
    Reader(_ACTORS, "nemo_rl.algorithms.async_utils.ReplayBuffer", classes=("Buffer",)),
    Reader(_ACTORS, _BATCH, names=("batch", "repeated_batch")),
)
DATA_PLANE = (
    Reader(
        "nemo/data_plane/actor.py", "nemo_rl.experience.sync_rollout_actor.SyncRolloutActor",
        classes=("AdaRolloutActor",),
    ),
)  # fmt: skip
CONTROLLER = (
    Reader(_PLUG_IN, "nemo_rl.experience.rollout_manager.RolloutManager", ("PluggedManager",), ("manager",)),
    Reader(_PLUG_IN, "nemo_rl.experience.rollout_manager.AsyncRolloutImpl", ("PluggedRollout",)),
    Reader(_PLUG_IN, "nemo_rl.experience.rollout_manager.RolloutOutcome", names=("RolloutOutcome",)),
    Reader(_PLUG_IN, "nemo_rl.experience.interfaces.Completion", names=("completion",)),
    Reader(_PLUG_IN, f"{_CONTROLLER_UTILS}.setup.SingleControllerActorArgs", names=("actor_args",)),
    Reader(_CONTROLLER, f"{_CONTROLLER_UTILS}.setup.SingleControllerActorArgs", names=("actor_args",)),
    Reader(_CONTROLLER, f"{_CONTROLLER_UTILS}.config.MasterConfig", names=("master_config", "config")),
    Reader(_CONTROLLER, "nemo_rl.algorithms.single_controller.SingleControllerActor", names=("controller",)),
    Reader(_CONTROLLER, _SAVES, names=("checkpointer", "parts['checkpointer']")),
)


ENGINE = (
    Reader("vllm.py", "vllm.v1.core.sched.scheduler.Scheduler", classes=("Collecting",)),
    Reader("vllm.py", "vllm.v1.engine.EngineCoreOutput", names=("output",)),
    Reader("vllm.py", "vllm.v1.request.Request", names=("request",)),
    Reader("vllm.py", "vllm.v1.outputs.LogprobsLists", names=("part",)),
    Reader("vllm.py", "vllm.sampling_params.SamplingParams", names=("params",)),
    Reader("nemo/rollouts/engine_abort.py", "vllm.v1.engine.async_llm.AsyncLLM", names=("engine",)),
    Reader("nemo/rollouts/engine_abort.py", "vllm.v1.engine.output_processor.RequestState", names=("state",)),
)
"""What we read of vLLM, in whose source it is looked up."""


def list_readers() -> tuple[Reader, ...]:
    """Return every place where our code holds an object of NeMo-RL, whatever the loop."""
    of_loops = LOOPS + COLLECTOR_OF_GROUPS + COLLECTOR_OF_BATCHES + BUFFER + DATA_PLANE
    return LAUNCHER + of_loops + CONTROLLER


def find_missing(checkout: Checkout, readers: tuple[Reader, ...]) -> Iterator[tuple[str, str]]:
    """Yield each attribute that our code reads and that the checkout's class does not have, and our file.

    Nothing is said of a class that is not there, because a check of names says it, nor of one that takes any attribute.
    """
    for reader in readers:
        there = list_attributes(checkout, reader.of)
        if there is not None:
            yield from ((f"{reader.of}.{name}", reader.file) for name in sorted(list_reads(reader) - there))


@functools.cache
def list_reads(reader: Reader) -> frozenset[str]:
    """Return the attributes of NeMo-RL's object that our file reads and does not make.

    What stands below `if hasattr(...)` is for some versions only, and may be missing.
    """
    tree = ast.parse(text_of(OURS / reader.file))
    ours = {
        node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in reader.classes
    }
    found = {node.attr for node in _walk_loads(tree) if ast.unparse(node.value) in reader.names}
    made: set[str] = set().union(*map(list_made, ours.values()))
    for name, body in ours.items():
        above: set[str] = set().union(*(list_made(one) for other, one in ours.items() if other != name))
        for node in _walk_loads(body):
            holder = ast.unparse(node.value)
            if (holder == "self" and node.attr not in made) or (holder == "super()" and node.attr not in above):
                found.add(node.attr)
    return frozenset(name for name in found if not name.startswith("__"))


def _walk_loads(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are read, without those below `if hasattr(...)`."""
    if isinstance(tree, ast.Attribute) and isinstance(tree.ctx, ast.Load):
        yield tree
    guarded = isinstance(tree, ast.If) and "hasattr(" in ast.unparse(tree.test)
    for node in ast.iter_child_nodes(tree):
        if not (guarded and node in getattr(tree, "body", ())):
            yield from _walk_loads(node)


def list_attributes(checkout: Checkout, dotted: str) -> set[str] | None:
    """Return the attributes of a class in a checkout, with those of its bases.

    None where the class is not there, or where a base from elsewhere or `__getattr__` may bring any.
    """
    found = checkout.find(dotted)
    if found is None or not isinstance(found.node, ast.ClassDef):
        return None
    there = list_made(found.node)
    if "__getattr__" in there:
        return None
    for base in found.node.bases:
        name = ast.unparse(base).split("[")[0]
        brought = list_attributes(checkout, f"{found.module}.{name}")
        if brought is None:
            brought = set(FOREIGN[name.split(".")[-1]]) if name.split(".")[-1] in FOREIGN else None
        if brought is None:
            return None
        there |= brought
    return there
