"""Who watches a run cannot end it."""

from __future__ import annotations

import errno

import pytest

from nemo_ada.run.observer import Observer, unfailing


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_an_observer_that_cannot_write_is_no_error(code):
    def broken(*_arguments):
        raise OSError(code, "broken")

    watching = unfailing(Observer(on_step=broken, on_message=broken, on_phase=broken))
    watching.on_step({"step": 1})
    watching.on_message("text")
    watching.on_phase(1, "save")


def test_other_errors_and_all_news_pass():
    seen = []

    def wrong(_record):
        raise ValueError("a defect")

    watching = unfailing(Observer(on_message=seen.append, on_evaluation=wrong))
    watching.on_message("text")
    assert seen == ["text"]
    with pytest.raises(ValueError, match="a defect"):
        watching.on_evaluation({})
