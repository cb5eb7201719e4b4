"""Key names of NeMo-RL's sections: what is misspelled is found without NeMo-RL, and the list is what v0.7.0 has.

`python tests/check/test_names.py NEMO_RL_HOME`, where NeMo-RL can be imported, prints the list anew.
"""

import importlib.util
import os
import sys
import types
import typing
from pathlib import Path

import pytest
import yaml

from nemo_ada.check.command import examine
from nemo_ada.cluster.nemo_config import upstream_part
from nemo_ada.rules import names

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "nemo"))
from nemo_support.compat import MODULE, use_typing_extensions_typed_dict

from recipes import changed

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs/qwen2.5-math-7b.yaml"
VLLM = "policy.generation.vllm_cfg"  # of a class that MasterConfig does not name
HEADER = """\
# Key names in NeMo-RL v0.7.0 (commit 81aa43d): the fields of nemo_rl.algorithms.grpo.MasterConfig and of the sections
# in it, and the keys that its grpo, dapo and prorl examples use beyond them. Section -> names; a section that is not
# here takes any. Made by tests/check/test_names.py.
"""


@pytest.mark.parametrize(
    ("changes", "upstream"),
    [
        ({}, {}),
        ({"policy.hf_config_overrides.anything": 1, "policy.megatron_cfg.env_vars.NEW_VARIABLE": "1"}, {}),
        ({"grpo.new_in_a_later_version": 1}, {"grpo": {"new_in_a_later_version": 0}}),
    ],
    ids=["a valid config", "sections that take any name", "a key of NeMo-RL's own files"],
)
def test_known_keys_are_not_refused(changes, upstream):
    assert [finding.level for finding in names.key_names(changed(changes), upstream)] == ["ok"]


def test_only_what_nemo_rls_own_files_say_is_the_upstream_part(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path / "RL"))
    (tmp_path / "RL").mkdir()
    (tmp_path / "RL/base.yaml").write_text("grpo: {seed: 1}")
    (tmp_path / "own.yaml").write_text("{defaults: RL/base.yaml, grpo: {seed: 2}}")
    (tmp_path / "run.yaml").write_text("{defaults: [own.yaml], cluster: {num_nodes: 1}}")
    assert upstream_part(tmp_path / "run.yaml") == {"grpo": {"seed": 1}}


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")
def test_a_misspelled_override_of_a_recipe_is_found():
    assert set(upstream_part(RECIPE)) >= {"grpo", "policy", "data"}
    found = examine(RECIPE, ["+grpo.batch_multiplyer=2"], verifier=False, site=False)
    unknown = [finding for finding in found if "no such key" in finding.message]
    assert [finding.key for finding in unknown] == ["grpo.batch_multiplyer"]


@pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ or importlib.util.find_spec("nemo_rl") is None,
    reason="NeMo-RL cannot be imported here, or NEMO_RL_HOME is not set",
)
def test_the_list_is_what_v070_has():
    if not importlib.import_module("nemo_rl").__version__.startswith("0.7.0"):
        pytest.skip("another version of NeMo-RL")
    known = yaml.safe_load(names.KNOWN.read_text())
    known.pop("policy.generation.vllm_kwargs")
    assert known == collected(Path(os.environ["NEMO_RL_HOME"]))


def fields_of(kind):
    """Names and annotations of a pydantic model or a TypedDict."""
    if hasattr(kind, "model_fields"):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return typing.get_type_hints(kind, include_extras=True)


def sections_of(annotation):
    """The models and TypedDicts that an annotation mentions; a plain dict holds any names."""
    origin = typing.get_origin(annotation)
    if origin is typing.Union or origin is types.UnionType or (origin is not None and origin not in (dict, list)):
        return [inner for part in typing.get_args(annotation) for inner in sections_of(part)]
    if hasattr(annotation, "model_fields") or hasattr(annotation, "__required_keys__"):
        return [annotation]
    return []


def collected(home):
    """Section -> names, from the installed NeMo-RL's classes and the examples of its checkout."""
    use_typing_extensions_typed_dict()
    found = {}

    def walk(kinds, where):
        fields = {}
        for kind in kinds:
            for name, annotation in fields_of(kind).items():
                fields.setdefault(name, []).extend(sections_of(annotation))
        if fields:
            found.setdefault(where or names.TOP, set()).update(fields)
        for name, inner in fields.items():
            if inner:
                walk(inner, f"{where}.{name}" if where else name)

    def use(section, where):
        if not isinstance(section, dict) or (where or names.TOP) not in found:
            return
        for key, value in section.items():
            if where or str(key) != "defaults":
                found[where or names.TOP].add(str(key))
                use(value, f"{where}.{key}" if where else str(key))

    walk([importlib.import_module(MODULE).MasterConfig], "")
    walk([importlib.import_module("nemo_rl.models.generation.vllm.config").VllmSpecificArgs], VLLM)
    for path in sorted((home / "examples/configs").rglob("*.yaml")):
        if any(algorithm in path.name for algorithm in ("grpo", "dapo", "prorl")):
            use(yaml.safe_load(path.read_text(encoding="utf-8")), "")
    return {section: sorted(keys) for section, keys in sorted(found.items())}


if __name__ == "__main__":
    listed = yaml.safe_dump(collected(Path(sys.argv[1])), default_flow_style=None, width=118, sort_keys=False)
    sys.stdout.write(HEADER + listed)
