"""Errors that the project raises on purpose. job_control.py lists their exit codes."""


class UserError(ValueError):
    """An error that the user can correct.

    The message says what is wrong, where it is wrong, and what would work.

    Attributes:
        key: the dotted key of the YAML that the error is about. None where the error is about no single key.
    """

    def __init__(self, message: str, *, key: "str | None" = None) -> None:
        super().__init__(message)
        self.key = key


class InvariantError(RuntimeError):
    """A promise inside the program is broken. The defect is in this project or in a back end, not in the input."""


class ProcessLostError(InvariantError):
    """A process of the run died (killed, out of memory, node lost). Resuming continues from the last save."""


class StallError(InvariantError):
    """A process of the run did not answer within its deadline. Resuming continues from the last save."""


class FailedResponsesError(RuntimeError):
    """Too many responses of a step have no label, because the engine or the verifier failed on them."""
