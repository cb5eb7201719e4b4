"""Errors that the project raises on purpose. run/job_control.py lists their exit codes."""

from __future__ import annotations


class UserError(ValueError):
    """The user can mend it. The message says what is wrong, where, what was found, and what would work."""


class InvariantError(RuntimeError):
    """An internal promise is broken: a defect of this project or of a back end, never of the user's input."""


class ProcessLostError(InvariantError):
    """A process of the run died (killed, out of memory, node lost). Resuming continues from the last save."""


class StallError(InvariantError):
    """A process of the run did not answer within its deadline. Resuming continues from the last save."""


class FailedResponsesError(RuntimeError):
    """Too many responses of a step have no label (engine or verifier failures) to train on the rest."""
