"""Fixtures of the report tests: one browser per session, and pages made from synthetic runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import browser as chromium

from nemo_ada.report import page


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without drawings, which take a second per page; their panels hold no other text than names."""
    monkeypatch.setattr(page, "panel_svg", lambda panel, names, seen: "")


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Browser]:
    """A headless Chromium."""
    reason = chromium.missing()
    if reason is not None:
        pytest.skip(reason)
    with chromium.browser() as session:
        yield session
