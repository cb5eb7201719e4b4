"""Options that are fields of a section: types, defaults, bounds and names of messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from pydantic import Field

from nemo_ada.cli.options import Fields, with_options
from nemo_ada.config.parsing import Section
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import UserError
from nemo_ada.standing import stand_in


@dataclass(frozen=True)
class Sizes:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    rows: Annotated[int, Bounds(gt=0)]
    """Rows of a batch."""
    top_p: float | None = None
    """URL of nothing."""
    folder: Path | None = None
    """Where it goes."""
    seen: tuple[str, ...] = ()
    """Names that were seen."""
    hidden: int = 5
    """No option."""


class Asked(Section):
    kind: Literal["plain", "odd"] = "plain"
    """How it is asked."""
    more: dict[str, Any] = Field(default_factory=dict)
    """Arguments."""


@pytest.fixture
def run():
    """Runs a command line; returns what the command got."""
    got = []
    app = typer.Typer()

    @app.command()
    @with_options
    def command(
        name: Annotated[str, typer.Argument(help="a name")],
        sizes: Annotated[Sizes, Fields("rows", "top_p", "folder", name_seen="seen")] = Sizes(8),
        asked: Annotated[Asked, Fields("kind", "more")] = Asked(),  # noqa: B008
        *,
        changes: Annotated[dict[str, Any], Fields(other_rows="rows", of=Sizes, unset="the file's")],
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        """Does nothing."""
        got[:] = [name, sizes, asked, changes, last]

    def run(*words: str) -> list[Any]:
        app(list(words), standalone_mode=False)
        return got

    return run


def test_without_an_option_the_command_gets_its_own_defaults(run):
    assert run("a") == ["a", Sizes(8), Asked(), {}, False]


def test_a_path_in_a_field_means_the_users_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "private").mkdir()
    with stand_in(tmp_path / "private"):
        assert run("a", "--folder", "x")[1].folder == tmp_path / "x"


def test_an_option_changes_its_field_alone(run):
    words = [
        "--rows",
        "3",
        "--name-seen",
        "x",
        "--name-seen",
        "y",
        "--kind",
        "odd",
        "--more",
        '{"deep": [1]}',
        "--last",
    ]
    found = run("a", *words, "--other-rows", "4")
    assert found == ["a", Sizes(3, seen=("x", "y")), Asked(kind="odd", more={"deep": [1]}), {"rows": 4}, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "0"], r"^--rows=0: input should be greater than 0$"),
        (["--top-p", "nan"], r"^--top-p=nan: "),
        (["--other-rows", "-1"], r"^--other-rows=-1: "),
        (["--kind", "even"], r"^--kind='even': input should be 'plain' or 'odd'$"),
        (["--more", "[1]"], r"^--more=.*"),
        (["--more", "{"], r"^--more='\{': invalid JSON"),
    ],
)
def test_a_value_that_the_field_refuses_is_named_by_its_option(run, words, message):
    with pytest.raises(UserError, match=message):
        run("a", *words)


def test_help_has_the_meaning_of_the_fields(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    run("--help")
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("rows of a batch [default: 8]", "URL of nothing", "repeatable; names that were seen",
                 "plain or odd; how it is asked [default: plain]", "JSON; arguments",
                 "rows of a batch (default: the file's)"):  # fmt: skip
        assert text in told
    assert "--hidden" not in told
