"""Rules judge by the NeMo-RL that is there, and not by v0.7.0.

1. A checkout's abilities are read in its source.
2. What a version mends is no error with it. What no version refuses is none with any.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.values import Values
from nemo_ada.rules import rulebook
from nemo_ada.rules.engine import FEW_MESSAGES, check_messages
from nemo_ada.rules.facts import version
from nemo_ada.rules.finding import Finding
from nemo_ada.run.redaction import find_secret_keys, hide_in

sys.path.insert(0, str(Path(__file__).parent))
from recipes import VALID

PREFIX = "policy.generation.vllm_cfg.enable_prefix_caching"
FUSED = "policy.sequence_packing.fuse_loss"
OLD_PACKER = "def _pack_input_ids(ids, n):\n    seq[:n] = ids[:n]\n"
NEW_PACKER = "def _pack_input_ids(ids, n):\n    n = min(n, len(ids))\n    seq[:n] = ids[:n]\n"
OLD_RESUME = '        if cfg.get("in_flight_weight_updates"):\n            self.engine.invalidate_kv_cache()\n'
IMPORT = "from nemo_rl.algorithms.async_utils.c import AsyncTrajectoryCollector\n"
COLLECTOR = "class AsyncTrajectoryCollector:\n    def resume_after_refit(self):\n"
NEW_RESUME = "        if cfg.recompute:\n            self.engine.invalidate_kv_cache()\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """checkout(packer, resume, *modules): NEMO_RL_HOME names a folder with this source."""

    def make(packer: str = OLD_PACKER, resume: str = OLD_RESUME, *modules: str) -> Path:
        package = tmp_path / "nemo_rl"
        files = {
            "algorithms/loss/utils.py": packer,
            "algorithms/async_utils/__init__.py": IMPORT,
            "algorithms/async_utils/c.py": COLLECTOR + resume,
            **dict.fromkeys(modules, ""),
        }
        for name, text in files.items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text)
        monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
        version.read_version.cache_clear()
        version._checkout.cache_clear()
        return tmp_path

    return make


MAIN = (NEW_PACKER, NEW_RESUME, "algorithms/single_controller.py")


def found(changes: dict[str, Any], key: str) -> list[Finding]:
    """What the rules say of a key."""
    config = OmegaConf.create(copy.deepcopy(VALID))
    for dotted, value in changes.items():
        OmegaConf.update(config, dotted, value, force_add=True)
    return [one for one in rulebook.apply_rules(OmegaConf.to_container(config)) if one.key == key]


def levels(changes: dict[str, Any], key: str) -> list[str]:
    return [one.level for one in found(changes, key)]


def test_a_checkout_s_abilities_are_read_in_its_source(checkout: Callable[..., Path]) -> None:
    assert version.read_version(checkout()) == version.V0_7_0
    version.read_version.cache_clear()
    assert version.read_version(checkout(*MAIN)) == version.MAIN
    version.read_version.cache_clear()
    home = checkout(*MAIN, "algorithms/single_controller_utils/config.py")
    (home / "nemo_rl/algorithms/single_controller_utils/config.py").write_text(
        'class AdvantageConfig:\n    mask_sample_field: str = "mask_sample"\n'
    )
    assert version.read_version(home) == version.V0_8_0


def test_without_a_checkout_rules_are_those_of_the_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setattr(version, "find_spec", lambda name: None)
    assert version.find_version() == version.V0_7_0


def test_the_fused_loss_takes_padded_packs_where_it_was_mended(checkout: Callable[..., Path]) -> None:
    changes = {FUSED: True, "policy.megatron_cfg.pipeline_model_parallel_size": 2}
    checkout()
    assert levels(changes, FUSED) == ["error"]
    checkout(*MAIN)
    assert levels(changes, FUSED) == []


ASYNC = {
    "grpo.async_grpo": {"enabled": True, "max_trajectory_age_steps": 1},
    "policy.generation.colocated": {"enabled": False, "resources": {"gpus_per_node": 4}},
}


def test_a_prefix_cache_beside_training_is_said_unless_refits_empty_it(checkout: Callable[..., Path]) -> None:
    empties = {"grpo.async_grpo.recompute_kv_cache_after_weight_updates": True}
    in_flight = {"grpo.async_grpo.in_flight_weight_updates": True}
    checkout()
    assert levels(ASYNC, PREFIX) == levels(ASYNC | empties, PREFIX) == ["warning"]
    checkout(*MAIN)
    assert levels(ASYNC, PREFIX) == levels(ASYNC | empties | in_flight, PREFIX) == ["warning"]
    assert levels(ASYNC | empties, PREFIX) == levels(ASYNC | {PREFIX: False}, PREFIX) == []


@pytest.mark.parametrize("backend", ["sglang", "megatron", "one_of_tomorrow"])
def test_other_engines_are_a_warning(backend: str) -> None:
    key = "policy.generation.backend"
    found = levels({key: backend}, key)
    assert "warning" in found and ("error" in found) <= (backend == "one_of_tomorrow"), (
        "a checkout knows its own back ends"
    )


LISTS = {
    "environments/utils.py": "ENV_REGISTRY = {'math': {'actor_class_fqn': 'm.Math'}, 'nemo_gym': {}}\n",
    "environments/math_environment.py": "class HFVerifyWorker:\n    def verify(self, impl):\n"
    "        if impl == 'dapo_math_verify':\n            return 1\n        elif impl == 'hf_math_verify':\n"
    "            return 0\n",
    "data/packing/algorithms.py": "class PackingAlgorithm(enum.Enum):\n    A = 'first_fit'\n    B = 'best_fit'\n",
    "algorithms/grpo.py": "def validate():\n    val_metrics = {'accuracy': 1}\n"
    "def setup(backend, cfg):\n    if backend == 'vllm':\n        assert 'supported with kv cache fp8 enabled'\n"
    "    elif backend in ('megatron', 'new'):\n        assert cfg.other == 'wrong'\n",
    "data/processors.py": "PROCESSOR_REGISTRY: Dict[str, F] = cast(F, {'math_hf': math, 'sft': sft})\n",
    "data/datasets/response_datasets/__init__.py": "DATASET_REGISTRY = {'GSM8K': a, 'AIME2024': partial(b, x=1)}\n",
    "models/generation/vllm/config.py": "class VllmSpecificArgs(TypedDict):\n"
    "    kv_cache_dtype: Literal['auto', 'fp8']\n",
}
MEGATRON_LISTS = {
    "optimizer/__init__.py": "def _get_megatron_optimizer_based_on_param_groups(config):\n"
    "    if config.optimizer == 'adam':\n        return 1\n    elif config.other == 'adamw':\n        return 2\n",
    "optimizer/emerging_optimizers.py": "_EMERGING_OPTIMIZERS: Dict = {}\n_EMERGING_OPTIMIZERS.update({'muon': 1})\n",
    "optimizer_param_scheduler.py": "class OptimizerParamScheduler:\n    def get_lr(self):\n"
    "        if self.lr_decay_style == 'cosine':\n            return 1\n"
    "        elif self.lr_wsd_decay_style == 'linear':\n            return 0\n"
    "    def get_wd(self):\n        return self.wd_incr_style == 'constant'\n",
    "transformer/moe/moe_layer.py": "class MoELayer:\n    def __init__(self, config):\n"
    "        assert config.moe_token_dispatcher_type == 'alltoall'\n",
}
MCORE = "policy.megatron_cfg"
FP8_CACHE = "policy.generation.vllm_cfg.kv_cache_dtype"


@pytest.fixture
def lists(checkout: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEMO_RL_HOME and MEGATRON_LM_HOME name checkouts whose lists have other names than v0.7.0's."""
    home, megatron = checkout() / "nemo_rl", tmp_path / "core/megatron/core"
    files = {home / name: text for name, text in LISTS.items()}
    for path, text in (files | {megatron / name: text for name, text in MEGATRON_LISTS.items()}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("MEGATRON_LM_HOME", str(tmp_path / "core"))
    version._checkout.cache_clear()


PACKER_KEY, METRIC = "policy.sequence_packing.algorithm", "checkpointing.metric_name"


@pytest.mark.parametrize(
    ("key", "right", "wrong", "level"),
    [
        ("env.math.math_verify_impl", "dapo_math_verify", "hf_math_verfy", "error"),
        (PACKER_KEY, "best_fit", "first_fit_decreasing", "error"),
        (METRIC, "val:accuracy", "val:acuracy", "error"),
        (f"{MCORE}.optimizer.optimizer", "adam", "adamw", "error"),
        (f"{MCORE}.optimizer.optimizer", "dist_muon", "munon", "error"),
        (f"{MCORE}.optimizer.optimizer", "muon", "soap", "warning"),
        (f"{MCORE}.scheduler.lr_decay_style", "cosine", "cosin", "error"),
        (f"{MCORE}.scheduler.lr_decay_style", "cosine", "linear", "error"),
        (f"{MCORE}.scheduler.weight_decay_incr_style", "constant", "const", "error"),
        (f"{MCORE}.moe_token_dispatcher_type", "alltoall", "all_to_all", "error"),
        ("data.train.processor", "math_hf", "math_fh", "error"),
        ("data.train.processor", "sft", "one_of_my_own", "warning"),
        ("data.validation.dataset_name", "AIME2024", "AIME2042", "error"),
        ("data.validation.dataset_name", "my.package.Dataset", "my_dataset", "error"),
        (FP8_CACHE, "auto", "fp9", "error"),
    ],
)
def test_names_are_those_that_the_checkout_lists(lists: None, key: str, right: str, wrong: str, level: str) -> None:
    more = {"policy.sequence_packing.enabled": True, "checkpointing.enabled": True, "grpo.val_period": 10}
    assert levels(more | {key: right}, key) == []
    assert levels(more | {key: wrong}, key) == [level]


def test_the_engines_name_is_one_that_the_checkout_knows(lists: None) -> None:
    key = "policy.generation.backend"
    assert levels({key: "new"}, key) == ["warning"]  # the rule of what was tried
    assert levels({key: "vlm"}, key) == ["error", "warning"]


def test_a_chat_template_is_looked_at(lists: None, tmp_path: Path) -> None:
    key = "policy.tokenizer.chat_template"
    (tmp_path / "there.jinja").write_text("{{ messages }}")
    for template in ("default", "{{ messages }}", None, str(tmp_path / "there.jinja")):
        assert levels({key: template}, key) == []
    assert levels({key: str(tmp_path / "their.jinja")}, key) == ["error"]


def test_an_fp8_cache_is_refused_where_the_checkout_refuses_it(lists: None) -> None:
    fits = {FP8_CACHE: "fp8", "policy.generation.vllm_cfg.precision": "fp8", "policy.generation.vllm_cfg.async_engine":
            False, f"{MCORE}.pipeline_model_parallel_size": 1}  # fmt: skip
    assert levels(fits, FP8_CACHE) == []
    assert levels(fits | {"policy.generation.vllm_cfg.precision": "bfloat16"}, FP8_CACHE) == ["error"]
    assert levels(fits | {"policy.generation.vllm_cfg.async_engine": True}, FP8_CACHE) == ["error"]


def test_without_a_checkout_no_name_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setattr(version, "find_spec", lambda name: None)
    monkeypatch.delenv("MEGATRON_LM_HOME", raising=False)
    keys = (f"{MCORE}.optimizer.optimizer", "data.train.processor", "data.validation.dataset_name", FP8_CACHE)
    for key in ("env.math.math_verify_impl", PACKER_KEY, *keys):
        assert levels({key: "anything"}, key) == []


def test_a_metric_of_validations_that_never_happen_matters_where_checkpoints_are_saved() -> None:
    key = "checkpointing.metric_name"
    changes = {key: "val:accuracy", "grpo.val_period": 0}
    assert levels(changes, key) == ["warning"]
    assert levels(changes | {"checkpointing.enabled": False}, key) == []


def test_validation_sets_may_be_a_list() -> None:
    changes = {"grpo.val_period": 10, "data.validation": [{"dataset_name": "AIME2024"}, {"dataset_name": "AIME2025"}]}
    assert [one.level for one in found(changes, "data.validation")] == []
    assert [one.key for one in found(changes, "data.validation.1")] == ["data.validation.1"]


def test_positions_that_yarn_stretches_are_the_model_s() -> None:
    key = "policy.max_total_sequence_length"
    yarn = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}
    changes = {key: 16384, "policy.generation.vllm_cfg.max_model_len": 16384}
    assert levels(changes, key) == ["error"]
    assert levels(changes | {"policy.hf_config_overrides.rope_scaling": yarn}, key) == []


def test_a_key_that_says_it_is_none_is_no_secret() -> None:
    servers = {"a": {"api_key": "dummy_key"}, "b": {"api_key": "EMPTY"}, "c": {"api_key": "hunter2hunter2"}}
    assert list(find_secret_keys(servers)) == ["c.api_key"]
    assert hide_in(servers)["a"]["api_key"] == "dummy_key"


def test_an_environment_that_no_data_set_names_is_refused(lists: None) -> None:
    """NeMo-RL's launcher for it is another script. Ours would train with the data set's environment."""
    puzzle = {"env.sliding_puzzle_game": {"cfg": {"max_moves": 30}}}
    assert levels(puzzle, "env.sliding_puzzle_game") == ["error"]
    assert levels(puzzle | {"env.should_use_nemo_gym": True}, "env.sliding_puzzle_game") == []
    assert levels(puzzle | {"data.train.env_name": "sliding_puzzle_game"}, "env.sliding_puzzle_game") == []
    own = {"env.puzzle": {"class": "nemo_ada.trl.Anything"}}
    assert not any("no data set" in one.message for one in found(own, "env.puzzle"))
    assert levels({"env.math": {"num_workers": 8}}, "env.math") == []


def test_rewards_that_are_no_shares_ask_for_a_threshold() -> None:
    key = "reinforce_ada.positive_threshold"
    scores = {"data.train.env_name": "reward_model", "env.reward_model": {"enabled": True}}
    assert levels(scores, key) == ["warning"]
    assert levels(scores | {key: -1.5}, key) == []
    assert levels({"data.train.env_name": "math", "env.math": {"num_workers": 8}}, key) == []


@pytest.mark.parametrize(
    ("pinned", "changes", "said"),
    [
        ("0.20.0", {}, "AsyncScheduler"),
        ("0.20.0", {"vllm_cfg": {"pipeline_parallel_size": 2}}, "2 GPUs runs under Ray"),
        ("0.20.0", {"vllm_cfg": {"tensor_parallel_size": 4}}, "4 GPUs runs under Ray"),
        ("0.25.1", {"vllm_cfg": {"pipeline_parallel_size": 2}}, "AsyncScheduler"),
        ("0.25.1", {"vllm_kwargs": {"async_scheduling": False}}, "is false"),
        ("0.25.1", {"vllm_kwargs": {"speculative_config": {"method": "ngram"}}}, "by ngram"),
    ],
)
def test_check_says_which_of_vllms_schedulers_few_messages_is_made_of(
    checkout: Callable[..., Path], pinned: str, changes: dict, said: str
) -> None:
    home = checkout()
    (home / "pyproject.toml").write_text(f"vllm = [\"vllm=={pinned} ; sys_platform != 'linux'\"]\n")
    generation = {"vllm_cfg": {"async_engine": True}, "vllm_kwargs": {"scheduler_cls": FEW_MESSAGES}}
    for section, keys in changes.items():
        generation[section] = {**generation[section], **keys}
    assert version.read_version(home).vllm == tuple(map(int, pinned.split(".")[:2]))
    (finding,) = check_messages(Values({"policy": {"generation": generation}}))
    assert finding.level == "ok"
    assert said in finding.message
