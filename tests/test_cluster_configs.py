"""The GPU configs in configs/: what can be said of them without a GPU.

Without NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) the configs' own keys are judged; with it the whole resolved
configuration is, and where NeMo-RL is importable its own loader and classes read them too.

1. A config's name says algorithm, model, nodes, GPUs and parallel layout, and they are what it configures.
2. Its header says nodes, GPUs, basis, memory, forecast and that it never ran.
3. Methods of one model differ in what configs/variants.py says and in nothing else.
4. Its reinforce_ada section passes the strict parser; rows per step divide into batches.
5. It is minimal: no key has the value that it would have anyway.
"""

import importlib
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_ada.config.presets import ada_settings
from nemo_ada.errors import UserError

sys.path.insert(0, str(Path(__file__).parent.parent / "configs"))
import variants
from variants import NAME

CONFIGS = Path(__file__).parent.parent / "configs"
RECIPES = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("common", "cpu", "eval"))
PRESET = {
    "ada": "ada_seq_balance",
    "ada-lean": "ada_seq_lean",
    "ada-idle": "ada_seq_idle",
    "ada-est": "ada_est_ema",
    "ada-single": "ada_single",
}
ALGORITHMS = {"ada", "ada-lean", "ada-idle", "grpo4", "grpo8", "grpo16", "dapo"}
UPSTREAM = os.environ.get("NEMO_RL_HOME")
needs_checkout = pytest.mark.skipif(UPSTREAM is None, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")


@pytest.fixture(scope="module", autouse=True)
def resolvers():
    """The arithmetic that NeMo-RL's files use in interpolations."""
    for name, rule in {"mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": max}.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, rule)


def raw(path):
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    return config


def parents(path):
    """Files named in `defaults`; NeMo-RL's are left out where there is no checkout."""
    named = OmegaConf.to_container(raw(path), resolve=False).get("defaults", [])
    found = []
    for name in [named] if isinstance(named, str) else named:
        if "${oc.env:NEMO_RL_HOME}" in name:
            if UPSTREAM is None:
                continue
            name = name.replace("${oc.env:NEMO_RL_HOME}", UPSTREAM)
        found.append((path.parent / name).resolve())
    return found


def own(path):
    config = raw(path)
    config.pop("defaults", None)
    return config


@cache
def merged(path):
    return OmegaConf.merge(below(path), own(path))


def below(path):
    """What the recipe would be without its own keys."""
    return OmegaConf.merge(*[merged(parent) for parent in parents(path)], {})


def leaves(node, prefix=""):
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def resolved(config):
    """Dotted key -> value, interpolations resolved where their target is there."""
    values = {}
    for key, value in leaves(OmegaConf.to_container(config, resolve=False)):
        if isinstance(value, str) and "${" in value and UPSTREAM is not None:
            value = OmegaConf.select(config, key)
        values[key] = value
    return values


def ids(path):
    return path.stem


every_recipe = pytest.mark.parametrize("path", RECIPES, ids=ids)


def named(path):
    name = NAME.fullmatch(path.stem)
    assert name is not None, f"{path.name}: <algo>-<model>-<n>n<g>g-<layout>[-suffix].yaml"
    return name


def test_every_model_has_every_method_and_fp8():
    have = {}
    for path in RECIPES:
        name = NAME.fullmatch(path.stem)
        if name and name["suffix"] in (None, "-fp8"):
            have.setdefault(name["model"], set()).add(name["algo"] + (name["suffix"] or ""))
    assert len(have) >= 10
    assert {model: methods - set(variants.ON_EASY) for model, methods in have.items()} == dict.fromkeys(
        have, ALGORITHMS | {"ada-fp8"}
    )


@pytest.mark.parametrize("base", variants.bases(), ids=ids)
def test_a_models_methods_are_what_the_generator_writes(base):
    for name, text in variants.variants(base).items():
        there = (base.parent / name).read_text(encoding="utf-8").splitlines()
        kept = [line for line in there if not line.startswith(("# Memory: ", "# Forecast: "))]
        assert kept == text.splitlines(), f"{name}: python configs/variants.py writes it"


def test_a_new_models_file_needs_no_header_of_its_own(tmp_path, monkeypatch):
    base = tmp_path / "qwen2.5-14b" / "ada-qwen2.5-14b-2n8g-tp2.yaml"
    base.parent.mkdir()
    base.write_text(
        "# A copy on Qwen2.5-Math-7B. 1 node\ndefaults: ../x.yaml\npolicy:\n  model_name: Qwen/Qwen2.5-14B # own\n"
    )
    assert variants.variants(base)["grpo4-qwen2.5-14b-2n8g-tp2.yaml"].startswith(
        "# GRPO, n = 4, on Qwen2.5-14B. 2 nodes x 8 GPUs (H100-80GB), 16 GPUs.\n"
    )
    monkeypatch.setattr(variants, "measured", lambda path: ["# Memory: m\n", "# Forecast: f\n"])
    variants.refresh(base)
    assert base.read_text().splitlines()[1:4] == ["# Memory: m", "# Forecast: f", "defaults: ../x.yaml"]
    base.write_text("defaults: ../x.yaml\n")
    with pytest.raises(UserError, match="names no model"):
        variants.variants(base)
    with pytest.raises(UserError, match="configs/qwen-7b has no ada-qwen-7b-"):
        variants.main(["qwen-7b"])


def test_the_table_of_models_repeats_the_headers():
    """Layout, memory and forecast of each train script's config stand in configs/README.md."""
    scripts = sorted((CONFIGS.parent / "slurm").glob("train_*.sh"))
    wanted = set()
    for script in scripts:
        path = CONFIGS.parent / re.search(r"CONFIG:-(.+?)\}", script.read_text(encoding="utf-8"))[1]
        header = path.read_text(encoding="utf-8")
        memory = re.search(r"Memory: learner (\d+) of", header)[1]
        forecast = re.search(r"Forecast: (\d+) s per step, (\d+ to \d+)", header)
        name = named(path)
        seconds = f"{forecast[1]} ({forecast[2]})"
        wanted.add((name["model"], name["nodes"], name["layout"], memory, seconds, f"`{script.name}`"))
    table = (CONFIGS / "README.md").read_text(encoding="utf-8")
    cell = r" ([^|]+) \|"
    assert set(re.findall(rf"^\| \[[^|]+\]\(([^)|]+)\) \|{cell * 5}$", table, re.M)) == wanted


@every_recipe
def test_name_follows_the_grammar_and_names_the_run(path):
    assert named(path)["model"] == path.parent.name
    assert own(path)["run_dir"] == f"runs/{path.stem}"


@every_recipe
def test_header_says_where_on_what_basis_memory_and_forecast(path):
    name = named(path)
    header = " ".join(
        line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    nodes, gpus = int(name["nodes"]), int(name["gpus"])
    assert re.search(rf"\b{nodes} nodes? x {gpus} GPUs\b.*\b{nodes * gpus} GPUs\b", header)
    assert "Basis: " in header
    assert re.search(r"Memory: learner \d+ of [\d.]+ GiB per GPU", header)
    assert re.search(r"Forecast: \d+ s per step, \d+ to \d+", header)
    assert header.endswith("Never ran on a GPU.")


@every_recipe
def test_sampling_section_is_valid_and_the_one_in_the_name(path):
    name = named(path)
    config = merged(path)
    section = OmegaConf.to_container(config.reinforce_ada)
    assert isinstance(section, dict)
    assert section["preset"] == PRESET.get(name["algo"], "grpo")
    group = config.grpo.num_generations_per_prompt
    ada_settings(section).plan(group, config.policy.generation.max_new_tokens)
    assert config.backend == "nemo_rl"
    assert config.grpo.adv_estimator.name == "reinforce_ada"
    if name["algo"].startswith("grpo"):
        assert group == int(name["algo"].removeprefix("grpo"))
    if name["algo"] == "ada-idle":
        assert config.policy.generation.vllm_cfg.async_engine


@every_recipe
def test_rows_of_a_step_divide_into_updates(path):
    config = merged(path)
    rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    update = config.policy.train_global_batch_size
    assert rows % update == 0
    if named(path)["algo"] != "ada-single":  # as many responses as grpo4's
        assert update == 128 * config.grpo.num_generations_per_prompt
    if config.loss_fn.get("force_on_policy_ratio"):
        assert rows == update, "force_on_policy_ratio means one update per step"


@every_recipe
def test_no_key_has_the_value_it_would_have_anyway(path):
    changed = resolved(merged(path))
    idle = []
    for key, _ in leaves(OmegaConf.to_container(own(path))):
        rest = own(path)
        parent, _, name = key.rpartition(".")
        del (OmegaConf.select(rest, parent) if parent else rest)[name]
        without = resolved(OmegaConf.merge(below(path), rest))
        if key in without and without[key] == changed[key]:
            idle.append(key)
    assert idle == [], f"{path.name} repeats its parents' {idle}"


@needs_checkout
@every_recipe
def test_name_agrees_with_the_resolved_cluster_and_layout(path):
    name = named(path)
    config = merged(path)
    assert (config.cluster.num_nodes, config.cluster.gpus_per_node) == (int(name["nodes"]), int(name["gpus"]))
    said = {kind: int(size) for kind, size in re.findall(r"(tp|pp|cp|ep)(\d+)", name["layout"])}
    learner = config.policy.megatron_cfg
    keys = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
    sizes = {
        kind: learner[f"{word}_model_parallel_size" if kind != "cp" else "context_parallel_size"]
        for kind, word in keys.items()
    }
    assert {kind: size for kind, size in sizes.items() if size > 1} == {k: s for k, s in said.items() if s > 1}
    replicas, rest = divmod(int(name["nodes"]) * int(name["gpus"]), sizes["tp"] * sizes["pp"] * sizes["cp"])
    assert rest == 0
    assert config.policy.train_global_batch_size % replicas == 0
    assert learner.fp8_cfg.enabled == (name["suffix"] == "-fp8")
    assert learner.enabled
    assert not config.policy.dtensor_cfg.enabled
    assert (
        config.policy.max_total_sequence_length
        >= config.data.max_input_seq_length + config.policy.generation.max_new_tokens
    )


@pytest.mark.nemo_rl
@needs_checkout
@every_recipe
def test_nemo_rl_itself_loads_it(path):
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]  # pydantic insists below Python 3.12
    try:
        grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    except ImportError as error:
        pytest.skip(f"NeMo-RL cannot be imported: {error}")
    loader = importlib.import_module("nemo_rl.utils.config")
    loader.register_omegaconf_resolvers()
    config = grpo.MasterConfig(**OmegaConf.to_container(loader.load_config(path), resolve=True))
    assert config.model_dump()["reinforce_ada"] == OmegaConf.to_container(merged(path).reinforce_ada)
    assert config.policy["train_global_batch_size"] == merged(path).policy.train_global_batch_size
