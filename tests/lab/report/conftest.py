"""Fixtures of the report tests."""

from __future__ import annotations

import pytest

from nemo_ada.lab.report import page


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without drawings. No text of a run is in them."""
    monkeypatch.setattr(page, "draw_figure", lambda figure, names, form: b"")
