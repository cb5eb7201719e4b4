"""The name under which checkpoints of 0.1.0 have their set of tickets (groups/prompt_queue.py)."""

from nemo_ada.nemo.groups.prompt_queue import Delivered

__all__ = ["Delivered"]
