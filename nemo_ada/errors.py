"""The kinds of error that the project raises on purpose, and the exit code of each (jobcontrol.py)."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user can mend: the message says what is wrong, where, what was found and what would work."""


class InvariantError(RuntimeError):
    """A promise of the code to itself is broken: a defect of ours or of a back end, never of the user's input."""


class ProcessLostError(InvariantError):
    """A process of the run died (killed, out of memory, its node lost): resuming goes on from the last save."""


class StallError(InvariantError):
    """A process of the run did not answer within its deadline: resuming goes on from the last save."""


class FailedResponsesError(RuntimeError):
    """Too many responses of a step have no label (engine or verifier failures): training on the rest would mislead."""
