"""An objective that a user wrote weighs as its f' says. One that gives no numbers is refused with the user's file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from nemo_ada.core.learning.objectives import Log, Own
from nemo_ada.errors import UserError

MODULE = """
import numpy as np
class Root:
    def __init__(self, a=0.5): self.a = a
    def value(self, p): return p ** self.a
    def weight(self, p): return self.a * p ** (self.a - 1)
class Logarithm:
    def value(self, p): return np.log(p)
    def weight(self, p): return 1 / p
class OneNumber(Root):
    def weight(self, p): return 1.0
class Fails(Root):
    def value(self, p): raise ZeroDivisionError("p is not what I thought")
class Falls(Root):
    def weight(self, p): return np.where(p > 0.9, -0.1, 1.0)
class Holes(Root):
    def weight(self, p): return np.where(p < 0.1, np.nan, 1.0)
"""
RATE_P = np.array([0.1, 0.5, 1.0])


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_objectives.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own_objectives.py"
    sys.modules.pop("own_objectives", None)


def test_it_weighs_as_the_built_in_one_of_the_same_f():
    own = Own(name="own_objectives:Logarithm")
    np.testing.assert_array_equal(own.value(RATE_P), Log().value(RATE_P))
    np.testing.assert_array_equal(own.weight(RATE_P), Log().weight(RATE_P))


def test_arguments_reach_the_class_and_two_settings_do_not_share_one_object():
    cube, root = (Own(name="own_objectives:Root", arguments={"a": a}) for a in (3.0, 0.5))
    np.testing.assert_allclose(cube.value(RATE_P), RATE_P**3)
    np.testing.assert_allclose(root.value(RATE_P), RATE_P**0.5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_objectives:OneNumber", "an array of 49 of float"),
        ("own_objectives:Fails", "own_objectives.py:13"),
        ("own_objectives:Missing", "it has Root, Logarithm, OneNumber, Fails, Falls, Holes"),
        ("own_objectives:Falls", "weight is negative, and an objective must not decrease at p = 0.92"),
        ("own_objectives:Holes", "weight is no number at p = 0.02"),
        ("own_objectives:np", "not a function"),
        ("no_such_module:Root", "there is no module no_such_module"),
        ("os:system", "Python's own"),
        ("own_objectives", "package.module:name"),
    ],
)
def test_what_cannot_be_used_is_refused_before_it_weighs_anything(name: str, says: str, module: Path):
    with pytest.raises(UserError, match=r"advantage\.objective\.name") as refusal:
        Own(name=name).weight(RATE_P)
    assert says in str(refusal.value)


def test_an_error_while_importing_has_the_users_file_and_line(module: Path):
    module.write_text("import numpy as np\nraise RuntimeError('half written')\n")
    with pytest.raises(UserError, match=r"own_objectives.py:2"):
        Own(name="own_objectives:Root").weight(RATE_P)
