"""Rules for rollouts by NeMo-Gym: what NeMo-RL asserts minutes into a job, and what Gym's servers need."""

from __future__ import annotations

from pathlib import Path

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.hub import find_snapshot
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.run.files import json_of

GYM, SECTION = "env.should_use_nemo_gym", "env.nemo_gym"
GENERATION = "policy.generation"
PROCESSOR, DATASET, ENVIRONMENT = "nemo_gym_data_processor", "NemoGymDataset", "nemo_gym"
COLUMNS = ("responses_create_params", "agent_ref")
"""What every line of a data set for NeMo-Gym has."""
FOR_TRAINING = "_for_training"
PREPARE = "NeMo-Gym's `ng_prepare_data` writes such files"


def uses_gym(values: Values) -> bool:
    """Return whether NeMo-Gym's servers run the rollouts."""
    return values.get(GYM, False) is True


def check_gym_engine(v: Values) -> Findings:
    """The engine answers Gym's agents over HTTP, and they say when a response ends."""
    if not uses_gym(v):
        return
    backend = v.get(f"{GENERATION}.backend", "")
    if backend != "vllm":
        yield error(
            f"{GENERATION}.backend",
            f"{GYM}=true was tried with vLLM's HTTP server only, and {GENERATION}.backend={backend}; set it to vllm",
        )
    for name, why in (
        ("async_engine", "NeMo-RL's HTTP server needs the asynchronous engine"),
        ("expose_http_server", "the agents ask the engine over HTTP"),
    ):
        if not v.get(f"{GENERATION}.vllm_cfg.{name}", False):
            key = f"{GENERATION}.vllm_cfg.{name}"
            yield error(key, f"{GYM}=true needs {key}=true: {why}; set it to true")
    key = f"{GENERATION}.vllm_kwargs.generation_config"
    if v.get(key) != "vllm":
        found = _read_defaults(v.get("policy.model_name", ""))
        text = (
            "shapes what the agents get over HTTP (NeMo-RL's server resets top_k only), and the learner knows nothing "
            f"of it; set {key} to vllm"
        )
        if found:
            yield error(key, f"{found} in the model's generation_config.json {text}")
        elif found is None:
            yield warning(key, f"a repetition_penalty in the model's generation_config.json {text}")
    for name in ("top_k", "stop_strings", "stop_token_ids"):
        value = v.get(f"{GENERATION}.{name}")
        if value not in (None, []):
            yield error(
                f"{GENERATION}.{name}",
                f"{GENERATION}.{name}={value}: NeMo-RL refuses it in the first rollout of {GYM}=true; set it to null",
            )


def _read_defaults(model: str) -> str | None:
    """Return what vLLM's HTTP server would take from the model's folder or the hub's cache, None if neither is here."""
    folder = Path(model) if Path(model).is_dir() else find_snapshot(model)
    if folder is None:
        return None
    path = folder / "generation_config.json"
    known = json_of(path) if path.is_file() else {}
    neutral = {"repetition_penalty": 1.0, "min_p": 0.0}
    return ", ".join(f"{name}={known[name]}" for name, off in neutral.items() if known.get(name, off) != off)


def check_gym_data(v: Values) -> Findings:
    """The data sets hold requests, and a validation has all rows of its set."""
    if not uses_gym(v):
        return
    for split in ("train", *(("validation",) if v.validates else ())):
        for name, needed in (("processor", PROCESSOR), ("dataset_name", DATASET), ("env_name", ENVIRONMENT)):
            value = v.get(f"data.{split}.{name}", v.get(f"data.default.{name}"))
            if value != needed:
                yield error(
                    f"data.{split}.{name}",
                    f"{value}: {GYM}=true reads requests and needs {needed}; set data.default.{name}={needed}",
                )
    samples = v.get("grpo.max_val_samples")
    if samples is not None:
        yield error(
            "grpo.max_val_samples",
            f"grpo.max_val_samples={samples}: a validation over NeMo-Gym has all rows of its set; set it and "
            "grpo.val_batch_size to null, and shorten the set",
        )


def check_gym_servers(v: Values) -> Findings:
    """The section that NeMo-RL hands to Gym names a model server for training and at least one environment."""
    if not uses_gym(v):
        return
    key = f"{SECTION}.config_paths"
    paths = v.get(key, [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        yield error(key, f"{paths!r} must be a list of NeMo-Gym's YAMLs")
        return
    models = [path for path in paths if "responses_api_models" in path.split("/")]
    if not any(FOR_TRAINING in path for path in models):
        yield error(
            key,
            f"{key} needs a model server that returns token ids; add "
            "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml",
        )
    if len(models) == len(paths):
        yield error(
            key,
            f"{key} names no environment; add one, such as "
            "resources_servers/math_with_judge/configs/math_with_judge.yaml",
        )


def check_gym_switch(v: Values) -> Findings:
    """The switch says true or false, and data for NeMo-Gym comes with it."""
    value = v.get(GYM, False)
    if not isinstance(value, bool):
        yield error(GYM, f"{GYM}={value} must be true or false")
    elif not value:
        for name, of_gym in (("processor", PROCESSOR), ("dataset_name", DATASET)):
            for key in (f"data.default.{name}", f"data.train.{name}"):
                if v.get(key) == of_gym:
                    yield error(GYM, f"{key}={of_gym} is data for NeMo-Gym's servers; set {GYM}=true")
                    return
    if v.get(f"{SECTION}.is_trajectory_collection", False):
        key = f"{SECTION}.is_trajectory_collection"
        yield error(
            key,
            f"{key}=true collects responses and trains nothing; set it to false, or use NeMo-RL's "
            "examples/nemo_gym/run_grpo_nemo_gym.py",
        )


GYM_RULES = (check_gym_switch, check_gym_engine, check_gym_data, check_gym_servers)
