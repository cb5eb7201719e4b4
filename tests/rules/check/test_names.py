"""Key names of NeMo-RL's sections: what is misspelled is found by the checkout that is there."""

import importlib.util
import os
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
import yaml

from nemo_ada.rules import names
from nemo_ada.rules.check.command import examine
from nemo_ada.rules.facts.checkout import Checkout
from nemo_ada.rules.facts.config_file import load_upstream_part

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "nemo"))
from nemo_support.compat import MODULE, use_typing_extensions_typed_dict

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "configs/qwen2.5-math-7b.yaml"
VLLM = "policy.generation.vllm_cfg"  # of a class that MasterConfig does not name


def test_only_what_nemo_rls_own_files_say_is_the_upstream_part(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path / "RL"))
    (tmp_path / "RL").mkdir()
    (tmp_path / "RL/base.yaml").write_text("grpo: {seed: 1}")
    (tmp_path / "own.yaml").write_text("{defaults: RL/base.yaml, grpo: {seed: 2}}")
    (tmp_path / "run.yaml").write_text("{defaults: [own.yaml], cluster: {num_nodes: 1}}")
    assert load_upstream_part(tmp_path / "run.yaml") == {"grpo": {"seed": 1}}


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")
def test_a_misspelled_override_of_a_recipe_is_found():
    assert set(load_upstream_part(RECIPE)) >= {"grpo", "policy", "data"}
    found = examine(RECIPE, ["+grpo.batch_multiplyer=2"], verifier=False, site=False)
    unknown = [finding for finding in found if "no such key" in finding.message]
    assert [finding.key for finding in unknown] == ["grpo.batch_multiplyer"]


@pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ or importlib.util.find_spec("nemo_rl") is None,
    reason="NeMo-RL cannot be imported here, or NEMO_RL_HOME is not set",
)
def test_the_names_in_the_source_are_those_of_the_classes():
    home = Path(os.environ["NEMO_RL_HOME"])
    assert names.collect_names(Checkout(home)) == collected(home)


def test_each_checkout_is_judged_by_its_own_names(tmp_path, monkeypatch):
    made = tmp_path / "nemo_rl/algorithms/grpo.py"
    made.parent.mkdir(parents=True)
    made.write_text(
        "class Inner(TypedDict):\n    depth: int\n\n"
        "class GRPO(BaseModel):\n    new_key: int = 3\n    inner: Inner\n    many: list[Inner]\n\n"
        "class MasterConfig(BaseModel):\n    grpo: GRPO\n"
    )
    (tmp_path / "examples/configs").mkdir(parents=True)
    (tmp_path / "examples/configs/grpo_a.yaml").write_text(
        "{defaults: x.yaml, grpo: {of_an_example: 1, many: {no: 1}}}"
    )
    (tmp_path / "examples/configs/sft.yaml").write_text("grpo: {of_another: 1}")
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    config = {"grpo": {"new_key": 1, "inner": {"depth": 2, "dept": 1}, "of_an_example": 1, "of_another": 1,
                       "many": [{"any": 1}]}}  # fmt: skip
    findings = list(names.check_key_names(config, {}))
    assert {finding.key for finding in findings} == {"grpo.inner.dept", "grpo.of_another"}
    assert "did you mean grpo.inner.depth" in findings[0].message


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A NeMo-RL whose only class has the key `seed`, and NEMO_RL_HOME names it."""
    loop = tmp_path / "nemo_rl/algorithms/grpo.py"
    loop.parent.mkdir(parents=True)
    loop.write_text("class GRPO(BaseModel):\n    seed: int\n\nclass MasterConfig(BaseModel):\n    grpo: GRPO\n")
    (tmp_path / "examples/configs").mkdir(parents=True)
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("tracked", [True, False], ids=["git", "no git"])
def test_a_users_yaml_in_the_checkout_teaches_no_names(home, tracked):
    examples = home / "examples/configs"
    (examples / "grpo_theirs.yaml").write_text("grpo: {of_an_example: 1}")
    if tracked:
        subprocess.run(["git", "init", "-q"], cwd=home, check=True)
        subprocess.run(["git", "add", "."], cwd=home, check=True)
    mine = examples / "grpo_mine.yaml"
    mine.write_text("defaults: grpo_theirs.yaml\ngrpo: {seeed: 1}\nreinforce_ada: {preset: grpo}\n")
    assert names.collect_names(Checkout(home))["grpo"] == {"seed", "of_an_example"}
    assert load_upstream_part(mine) == {"grpo": {"of_an_example": 1}}
    (finding,) = names.check_key_names(yaml.safe_load(mine.read_text()), load_upstream_part(mine))
    assert (finding.level, finding.key) == ("error", "grpo.seeed")


def test_a_checkout_of_another_user_is_read_as_ones_own(home, monkeypatch):
    """git refuses such a folder by itself, and then no file would count as NeMo-RL's."""
    (home / "examples/configs/grpo_theirs.yaml").write_text("grpo: {of_an_example: 1}")
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    subprocess.run(["git", "add", "."], cwd=home, check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert subprocess.run(["git", "ls-files"], cwd=home, capture_output=True, check=False).returncode == 128
    (home / "examples/configs/grpo_mine.yaml").write_text("grpo: {mine: 1}")
    assert names.collect_names(Checkout(home))["grpo"] == {"seed", "of_an_example"}


def test_files_that_are_no_examples_are_passed_over(home):
    examples = home / "examples/configs"
    for number, content in enumerate((b"", b"[1, 2]", b"a: [", b"a: \xff\xfe")):
        (examples / f"grpo_{number}.yaml").write_bytes(content)
    (examples / "grpo_link.yaml").symlink_to(examples / "nowhere.yaml")
    assert names.collect_names(Checkout(home))["grpo"] == {"seed"}


def test_without_a_checkout_no_name_is_judged(home, monkeypatch):
    wrong = {"grpo": {"seeed": 1}}
    assert [finding.level for finding in names.check_key_names(wrong, {})] == ["error"]
    (home / "examples/configs").rmdir()  # an installed package has no examples
    assert [finding.level for finding in names.check_key_names(wrong, {})] == ["skipped"]


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        ({"gpro": {"seed": 1}}, "did you mean grpo?"),
        ({"grpo": {"preset": "grpo"}}, "did you mean reinforce_ada.preset?"),
        ({"cluster": {"seed": 1}}, "remove it, or look it up in NeMo-RL's examples/configs"),
        ({"new_in_a_later_version": 1, "grpo": {"seed": 1}}, None),
    ],
)
def test_a_message_says_what_may_be_meant(home, config, remedy):
    found = list(names.check_key_names(config, {"new_in_a_later_version": 0}))
    assert [finding.level for finding in found] == ["ok" if remedy is None else "error"]
    assert remedy is None or remedy in found[0].message


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
    return found
