"""Rules for vLLM's engine: what it refuses, what makes it slow, and which of its schedulers a config comes to."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from nemo_ada.config.values import Values
from nemo_ada.rules.facts import attributes, version
from nemo_ada.rules.facts.checkout import Checkout
from nemo_ada.rules.facts.nemo_config import FEW_MESSAGES
from nemo_ada.rules.finding import Findings, error, ok, warning

GENERATION = "policy.generation"
VLLM, KWARGS = f"{GENERATION}.vllm_cfg", f"{GENERATION}.vllm_kwargs"
BATCHED, AHEAD = f"{KWARGS}.max_num_batched_tokens", f"{KWARGS}.async_scheduling"
SPECULATIVE = f"{KWARGS}.speculative_config"
RAY_PLANS_AHEAD = (0, 25)  # the vLLM whose Ray executor is the newer one, which takes asynchronous scheduling
NOT_AHEAD = ("ngram", "medusa", "mlp_speculator", "suffix")  # speculative methods that vLLM 0.20 to 0.32 wait for


def check_engine(v: Values) -> Findings:
    """What vLLM refuses, what makes it slow, and back ends that are no vLLM."""
    backend = v.get(f"{GENERATION}.backend", "vllm")
    if backend != "vllm":
        yield warning(
            f"{GENERATION}.backend",
            f"{backend}: waves call NeMo-RL's own rollout functions, which serve every back end, and only vLLM has "
            "been rehearsed: responses that the sampler drops run to their end here, and a dead engine is found by its "
            "silence only",
        )
    tokens, seqs = v.number(BATCHED), v.number(f"{KWARGS}.max_num_seqs")
    if tokens is not None and seqs is not None and seqs > tokens:
        yield error(
            f"{KWARGS}.max_num_seqs", f"{seqs:g} is above max_num_batched_tokens={tokens:g}; {tokens:g} would work"
        )
    if backend == "vllm" and v.get(f"{VLLM}.async_engine", False) and tokens is None:
        yield warning(
            BATCHED,
            "not set: the asynchronous engine then reads 2,048 tokens of prompts per step, where NeMo-RL's default "
            "engine reads 16,384 (NeMo-RL pull request 4221); 16384 would work",
        )
    if backend == "vllm":
        yield from check_messages(v)


def check_messages(v: Values) -> Findings:
    """Say whether tokens of the asynchronous engine come in few messages (nemo_ada/vllm.py), and why not."""
    key, scheduler = f"{KWARGS}.scheduler_cls", v.get(f"{KWARGS}.scheduler_cls")
    stops = v.get(f"{GENERATION}.stop_strings")
    if not v.get(f"{VLLM}.async_engine", False):
        if scheduler == FEW_MESSAGES:
            yield error(key, f"{scheduler} is for async_engine=true, whose engine is another process; leave it out")
    elif scheduler is None:
        yield warning(
            key,
            "not set: vLLM sends a message for each token, which took an engine 40 microseconds a token where few "
            f"messages take 25 (recipes/results/gpu.md); {FEW_MESSAGES} would work",
        )
    elif scheduler == FEW_MESSAGES and stops:
        yield warning(f"{GENERATION}.stop_strings", f"{stops}: responses with stop strings need a message for each "
                      f"token, so {FEW_MESSAGES} changes nothing; stop_token_ids would stop without")  # fmt: skip
    elif scheduler == FEW_MESSAGES and (lost := sorted(find_misfits())):
        yield error(key, f"{scheduler} reads {', '.join(lost)}, and the vLLM that is here has none; leave it out")
    elif scheduler == FEW_MESSAGES:
        yield ok(key, f"few messages per response, and {describe_planning(v)}")


def find_misfits() -> set[str]:
    """Return what our part of the engine reads and the vLLM does not have that Python would import here.

    On a cluster vLLM stands in the workers' own environment, so there the answer is of the image that `check` runs in.
    """
    found = find_spec("vllm")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    here = [Checkout(Path(place).parent, "vllm") for place in places[:1]]
    return {name for checkout in here for name, _ in attributes.find_missing(checkout, attributes.ENGINE)}


def describe_planning(v: Values) -> str:
    """Return in words which scheduler vLLM chooses, which FewMessages follows."""
    if why := _explain_wait(v):
        return f"vLLM's own Scheduler below it, which waits for a step's tokens before it plans the next one: {why}"
    return "vLLM's AsyncScheduler below it, which plans a step before the last one's tokens are there"


def plans_ahead(v: Values) -> bool:
    """Return whether vLLM plans a step before the tokens of the last one are there."""
    return not _explain_wait(v)


def _explain_wait(v: Values) -> str:
    """Return why vLLM does not plan ahead (its config/vllm.py). Empty where it does, which is its default."""
    gpus = v.integer(f"{VLLM}.tensor_parallel_size", 1) * v.integer(f"{VLLM}.pipeline_parallel_size", 1)
    told, method = v.get(AHEAD), v.get(f"{SPECULATIVE}.method")
    if told is not None:
        return "" if told else f"{AHEAD} is false"
    if gpus > 1 and version.find_version().vllm < RAY_PLANS_AHEAD:
        return f"an engine of {gpus} GPUs runs under Ray, whose executor cannot before vLLM 0.25"
    return f"it cannot with speculative decoding by {method}" if method in NOT_AHEAD else ""


ENGINE: tuple[Callable[[Values], Findings], ...] = (check_engine,)
