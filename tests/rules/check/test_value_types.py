"""Values are judged by the configuration classes of the checkout that NEMO_RL_HOME names, read as source."""

import os
from pathlib import Path

import pytest

from nemo_ada.rules.check.command import examine
from nemo_ada.rules.value_types import check_value_types

UPSTREAM = os.environ.get("NEMO_RL_HOME")
RECIPE = Path(__file__).parents[3] / "configs/qwen2.5-math-7b.yaml"
CLASSES = """
class Inner(Other):
    depth: int
class On(TypedDict):
    enabled: Literal[True]
    size: "Size"
    kind: str
class Off(TypedDict):
    enabled: Literal[False]
class GRPO(Base):
    seed: int = 3
    template: NotRequired[str]
    stop: list[str] | None
    part: On | Off
    other: SomeClass | None
    pair: tuple[int, int] = (1, 2)
    many: tuple[int, ...] = ()
    ratio: Annotated[float, Field(gt=0)]
    pool: NotRequired[Pool]
    sets: Set | list[Set] = None
    least: int = Field(1, gt=0)
    most: int = Field(gt=0)
    _own: int
class Set(TypedDict):
    path: str
    column: str
class Base(BaseModel):
    name: str = "a"
class Pool(TypedDict, total=False):
    again: Pool
    count: int
class MasterConfig(BaseModel):
    grpo: GRPO
    parts: dict[str, On] = {}
Size = Union[int, None]
"""
GOOD = {"template": "a", "stop": None, "part": {"enabled": False}, "other": 3, "ratio": 1.5, "most": 3}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A NeMo-RL with the classes, and NEMO_RL_HOME names it."""
    loop = tmp_path / "nemo_rl/algorithms/grpo.py"
    loop.parent.mkdir(parents=True)
    loop.write_text(CLASSES)
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))


@pytest.mark.parametrize(
    "more",
    [{}, {"part": {"enabled": True, "size": None, "kind": "a"}}, {"part": {"enabled": True, "size": 2, "kind": "a"}},
     {"seed": "4"}, {"pair": [1, 2], "many": [1, 2, 3]}, {"pool": {"again": "anything"}}, {"unknown": 1}],
)  # fmt: skip
def test_values_of_their_types_are_taken(more):
    assert list(check_value_types({"grpo": GOOD | more, "reinforce_ada": {"preset": "x"}})) == []


@pytest.mark.parametrize(
    ("more", "key", "says"),
    [
        ({"seed": "three"}, "grpo.seed", "three"),
        ({"template": None}, "grpo.template", "null"),
        ({"stop": "a"}, "grpo.stop", "list"),
        ({"stop": {"a": 1}}, "grpo.stop", "list"),
        ({"stop": ["a", 1]}, "grpo.stop.1", "string"),
        ({"pair": [1]}, "grpo.pair", "required"),
        ({"many": [1, "b"]}, "grpo.many.1", "integer"),
        ({"ratio": []}, "grpo.ratio", "number"),
        ({"name": 3}, "grpo.name", "string"),
        ({"pool": {"count": "many"}}, "grpo.pool.count", "integer"),
        ({"part": {"enabled": 7}}, "grpo.part", "enabled 7"),
        ({"part": {"enabled": True, "size": "large", "kind": "a"}}, "grpo.part", "size 'large'"),
        ({"part": {"enabled": True}}, "grpo.part", "kind it is missing"),
        ({"sets": {"path": 5, "column": 6}}, "grpo.sets", "column 6"),
        ({"sets": 5}, "grpo.sets", "5"),
        ({"least": 1}, "grpo.most", "missing"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_own_key(more, key, says):
    given = GOOD | more
    if key == "grpo.most":
        del given["most"]
    found = list(check_value_types({"grpo": given}))
    assert key in {finding.key for finding in found}
    assert says in " ".join(finding.message for finding in found)
    assert {finding.key.split(".")[1] for finding in found} == {key.split(".")[1]}


def test_a_missing_section_and_a_value_in_a_mapping_of_the_users_names_are_found():
    assert [finding.key for finding in check_value_types({})] == ["grpo"]
    found = list(check_value_types({"grpo": GOOD, "parts": {"mine": {"enabled": False, "size": 1, "kind": "a"}}}))
    assert [finding.key for finding in found] == ["parts.mine.enabled"]


def test_without_a_checkout_and_for_the_single_controller_nothing_is_judged(monkeypatch):
    wrong = {"grpo": {"seed": "three"}}
    assert list(check_value_types(wrong)) != []
    assert list(check_value_types(wrong | {"async_rl": {"enabled": True}})) == []
    monkeypatch.delenv("NEMO_RL_HOME")
    monkeypatch.setenv("NEMO_ADA_SITE", os.devnull)
    assert list(check_value_types(wrong)) == []


def test_check_names_the_key(monkeypatch):
    if UPSTREAM is None:
        pytest.skip("NEMO_RL_HOME is not set")
    monkeypatch.setenv("NEMO_RL_HOME", UPSTREAM)
    found = examine(RECIPE, ["policy.tokenizer.chat_template=null"], verifier=False, site=False)
    assert "policy.tokenizer.chat_template" in {finding.key for finding in found if finding.level == "error"}


@pytest.mark.parametrize("kind", ["dict[int]", "Literal[Mode.X]", "'list[int'", "Tree", "Literal['a', *MORE]"])
def test_types_that_cannot_be_made_here_judge_nothing(kind, tmp_path):
    classes = f"class MasterConfig(BaseModel):\n    grpo: {kind}\nTree = dict[str, 'Tree'] | int\n"
    (tmp_path / "nemo_rl/algorithms/grpo.py").write_text(classes)
    assert list(check_value_types({"grpo": 3})) == []
