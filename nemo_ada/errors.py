"""The two kinds of error that the project raises on purpose."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user can mend: the message says what is wrong, where, what was found and what would work."""


class InvariantError(RuntimeError):
    """A promise of the code to itself is broken: a defect of ours or of a back end, never of the user's input."""


class FailedResponsesError(RuntimeError):
    """Too many responses of a step have no label (engine or verifier failures): training on the rest would mislead."""
