"""The GPU configs in configs/: what can be said of them without a GPU.

Without NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) the configs' own keys are judged; with it the whole resolved
configuration is, and where NeMo-RL is importable its own loader and classes read them too.

1. A config is named like its run, and its header says nodes, GPUs, basis and that it never ran.
2. Its reinforce_ada section passes the strict parser; rows per step divide into batches.
3. It is minimal: no key has the value that it would have anyway.
4. The tables of configs/README.md say what check and plan say.
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

from nemo_ada.config.load import load_words
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.rules.facts.config_file import load_config
from tests.nemo.nemo_support.compat import MODULE, why_not_importable

CONFIGS = Path(__file__).parents[2] / "configs"
sys.path.insert(0, str(CONFIGS))
import table  # noqa: E402

MODELS = sorted(CONFIGS.glob("*.yaml"))
METHODS = sorted((CONFIGS / "methods").glob("*.yaml"))
COMBINATIONS = [
    words for model in table.MODELS for method in table.METHODS if (words := table.words_of(model, method))
] + [
    ["configs/qwen2.5-math-7b.yaml", "configs/methods/apex.yaml"],
    ["configs/qwen2.5-math-7b.yaml", "configs/methods/lora.yaml"],
    ["configs/qwen2.5-math-1.5b.yaml", "configs/methods/one-gpu.yaml"],
    ["configs/qwen2.5-0.5b-one-gpu.yaml"],
    ["configs/qwen2.5-math-7b-lora-one-gpu.yaml"],
    ["configs/qwen2.5-32b-lora.yaml"],
]
NAMES = ("run_dir", "checkpointing.checkpoint_dir", "logger.log_dir", "logger.wandb.name")
PRESET = {
    "ada-lean": "ada_seq_lean",
    "ada-est": "ada_est_ema",
    "ada-single": "ada_single",
    **dict.fromkeys(("grpo4", "grpo8", "grpo16", "dapo"), "grpo"),
}
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
def merged(*paths):
    """The YAMLs of a combination, as far as they can be read here."""
    return OmegaConf.merge(*[OmegaConf.merge(below(path), own(path)) for path in paths])


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


@cache
def loaded(*words):
    """The resolved configuration of these words, over NeMo-RL's files."""
    first, *rest = (str(CONFIGS.parent / word) if ".yaml" in word else word for word in words)
    return load_config(Path(first), rest)


def files(words):
    return [CONFIGS.parent / word for word in words]


def ids(value):
    return value.stem if isinstance(value, Path) else " ".join(Path(word).stem for word in value)


every_model = pytest.mark.parametrize("path", MODELS, ids=ids)
every_method = pytest.mark.parametrize("path", METHODS, ids=ids)
every_combination = pytest.mark.parametrize("words", COMBINATIONS, ids=ids)


def test_the_shipped_combinations_are_models_and_overlays_that_exist():
    used = {word for words in COMBINATIONS for word in words}
    there = {str(path.relative_to(CONFIGS.parent)) for path in (*MODELS, *METHODS)}
    over_gym = {f"configs/qwen3-4b-instruct-2507-gym-{name}.yaml" for name in ("math", "tools")}
    newer = {"configs/methods/single-controller.yaml"}
    assert used | over_gym | newer == there, "test_gym_configs.py has the others"
    assert len(MODELS) + len(METHODS) + len(list((CONFIGS / "common").glob("*.yaml"))) <= 43


@pytest.mark.long
@needs_checkout
def test_every_combination_has_a_folder_of_its_own():
    folders = [loaded(*words)["run_dir"] for words in COMBINATIONS]
    assert len(set(folders)) == len(folders)
    assert folders[0] == "runs/qwen2.5-math-1.5b-ada"


@every_model
def test_a_models_yaml_names_its_run_and_says_where_and_on_what_basis(path):
    assert own(path)["run_dir"] == f"runs/{path.stem}"
    lines = path.read_text(encoding="utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    said = re.search(r"\b(\d+) nodes? x (\d) GPUs? \(H100-80GB\), (\d+) GPUs?\.", header)
    assert said is not None and int(said[3]) == int(said[1]) * int(said[2])
    assert "Basis: " in header
    assert header.endswith("Never ran on a GPU.")
    if UPSTREAM is not None:
        cluster = merged(path).cluster
        assert (cluster.num_nodes, cluster.gpus_per_node) == (int(said[1]), int(said[2]))


@every_method
def test_an_overlay_names_no_run_and_says_what_it_is(path):
    assert "run_dir" not in own(path)
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.long
@every_combination
def test_the_sampling_section_is_valid_and_the_methods_own(words):
    method, config = Path(words[-1]).stem, merged(*files(words))
    section = OmegaConf.to_container(config.reinforce_ada)
    assert isinstance(section, dict)
    assert section["preset"] == PRESET.get(method, "ada_seq_balance")
    group = config.grpo.num_generations_per_prompt
    parse_ada_settings(section).plan(group, config.policy.generation.max_new_tokens)
    assert config.backend == "nemo_rl"
    assert config.grpo.get("adv_estimator", {"name": "grpo"})["name"] == "grpo"
    if method.startswith("grpo"):
        assert group == int(method.removeprefix("grpo"))


@every_combination
def test_rows_of_a_step_divide_into_updates(words):
    config = merged(*files(words))
    rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    update = config.policy.train_global_batch_size
    assert rows % update == 0
    if Path(words[-1]).stem != "ada-single":  # as many responses as grpo4's
        prompts = 64 if "one-gpu" in " ".join(words) else 128
        assert update == prompts * config.grpo.num_generations_per_prompt
    if config.loss_fn.get("force_on_policy_ratio"):
        assert rows == update, "force_on_policy_ratio means one update per step"


def idle_keys(under, config):
    """Keys of a YAML that change nothing in what it is merged over."""
    changed = resolved(OmegaConf.merge(under, config))
    for key, _ in leaves(OmegaConf.to_container(config)):
        rest = OmegaConf.create(OmegaConf.to_container(config))
        parent, _, name = key.rpartition(".")
        del (OmegaConf.select(rest, parent) if parent else rest)[name]
        without = resolved(OmegaConf.merge(under, rest))
        if key in without and without[key] == changed[key]:
            yield key


@pytest.mark.long
@every_model
def test_no_key_of_a_model_has_the_value_it_would_have_anyway(path):
    assert list(idle_keys(below(path), own(path))) == [], f"{path.name} repeats its parents' keys"


@pytest.mark.long
@needs_checkout
@every_method
def test_no_key_of_an_overlay_changes_nothing_in_every_model_that_has_it(path):
    if path.stem == "ada":  # the overlay names the method that a model has anyway
        return
    bases = [files(words)[0] for words in COMBINATIONS if words[-1] == f"configs/methods/{path.stem}.yaml"]
    same = set()
    if path.stem == "single-controller":
        bases = [CONFIGS / f"{name}.yaml" for name in ("qwen2.5-math-1.5b", "qwen2.5-math-7b")]
        same = {"policy.train_global_batch_size"}  # it follows an override of grpo.num_prompts_per_step
    assert bases
    assert set.intersection(*[set(idle_keys(merged(base), own(path))) for base in bases]) == same


@needs_checkout
@every_combination
def test_megatron_trains_in_the_precision_of_the_name_and_a_response_has_room(words):
    config = merged(*files(words))
    learner = config.policy.megatron_cfg
    assert learner.fp8_cfg.enabled == ("fp8" in " ".join(words))
    assert learner.enabled
    assert not config.policy.dtensor_cfg.enabled
    room = config.data.max_input_seq_length + config.policy.generation.max_new_tokens
    assert config.policy.max_total_sequence_length >= room


@pytest.mark.long
@needs_checkout
@every_combination
def test_check_finds_no_error_but_for_what_a_site_has(words):
    first, *rest = files(words)
    found = table.examine(first, [str(path) for path in rest], verifier=False, site=False)
    of_the_machine = {"policy.megatron_cfg.gradient_accumulation_fusion"}  # apex has to be installed
    assert [f for f in found if f.level == "error" and f.key not in of_the_machine] == []


@pytest.mark.long
@needs_checkout
@pytest.mark.parametrize("model", ["qwen2.5-math-1.5b", "qwen2.5-32b"])
def test_the_tables_say_what_check_and_plan_say(model):
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8").splitlines()
    assert table.model_row(model) in readme
    assert table.method_row(model) in readme


def test_every_model_and_method_has_its_row_and_its_name_in_the_readme():
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8")
    for path in (*MODELS, *METHODS):
        assert f"`{path.stem}`" in readme or f"({path.name})" in readme, path
    for model in table.MODELS:
        assert f"\n| {model} |" in readme


@pytest.mark.nemo_rl
@needs_checkout
@every_combination
def test_nemo_rl_itself_loads_it(words):
    if reason := why_not_importable():
        pytest.skip(reason)
    grpo = importlib.import_module(MODULE)
    launch = importlib.import_module("nemo_ada.nemo.launch.command")
    first, *rest = files(words)
    read = launch.load(first, [str(path) for path in rest])
    config = grpo.MasterConfig(**read)
    assert read["run_dir"] == load_words(first, [str(path) for path in rest]).run_dir
    assert read == loaded(*words)
    assert config.policy["train_global_batch_size"] == merged(*files(words)).policy.train_global_batch_size
