"""Render a chat template as the library does. `run/limited.py` calls it: a template is a program of its author."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template


def render(template: str, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any]) -> str:
    """Return the prompt of these messages. A template may raise any error.

    Args:
        template: the text of the template.
        messages: the conversation.
        arguments: the tokenizer's special tokens by name, and what the user sets in addition.
    """
    rendered: Any = render_jinja_template(
        [list(messages)], chat_template=template, add_generation_prompt=True, **arguments
    )
    return str(rendered[0][0])
