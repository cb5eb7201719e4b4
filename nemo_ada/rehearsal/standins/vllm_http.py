"""NeMo-RL's HTTP server was written for vLLM 0.20, and main's for vLLM 0.25. Later releases moved names that they use.

A server of NeMo-RL that asks for the new names gets vLLM's own classes as they are.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements(
    "older vLLM's names of the HTTP server", "the same classes of this vLLM, at their new names"
)

ERRORS, MOVED_ERRORS = "vllm.entrypoints.openai.engine.protocol", "vllm.entrypoints.serve.engine.protocol"
RENDER = "vllm.entrypoints.serve.render.serving"
CHAT, MOVED_CHAT = "vllm.entrypoints.chat_utils", "vllm.renderers.chat_utils"


def _has_module(module: str) -> bool:
    """Return whether this release of vLLM has the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a parent is missing, or we have put the module there
        return module in sys.modules


def _add_alias(name: str, module: ModuleType) -> None:
    """Make a module importable at a name whose parent package may not exist."""
    parent = name.rpartition(".")[0]
    if not _has_module(parent):
        sys.modules[parent] = ModuleType(parent)
    sys.modules[name] = module


def _make_serving_render() -> type:
    """Return the class OpenAIServingRender of vLLM 0.20: today's OnlineRenderer with the old names of two arguments."""
    renderer: Any = importlib.import_module("vllm.renderers.online_renderer").OnlineRenderer

    class OpenAIServingRender(renderer):  # type: ignore[misc]
        def __init__(self, *args: Any, model_registry: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            preprocess: Any = self.preprocess_chat  # NeMo-RL's subclass has its own, with vLLM 0.20's arguments

            def preprocess_chat(*args: Any, parser: Any = None, **kwargs: Any) -> Any:
                return preprocess(*args, tool_parser=parser, **kwargs)

            self.__dict__["preprocess_chat"] = preprocess_chat

        async def preprocess_chat(
            self, *args: Any, tool_parser: Any = None, reasoning_parser: Any = None, **kwargs: Any
        ) -> Any:
            return await super().preprocess_chat(*args, parser=tool_parser, **kwargs)

    return OpenAIServingRender


@REPLACEMENTS.after(
    "vllm.entrypoints.openai.chat_completion.serving",
    "OpenAIServingChat.__init__",
    why="NeMo-RL's server names an argument and two modules of vLLM 0.20; it imports this module before those two.",
)
def _replace_chat(names: Names) -> None:
    create = names.get("OpenAIServingChat.__init__")

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **_rename_arguments(kwargs))

    names.put("OpenAIServingChat.__init__", __init__)
    if not _has_module(ERRORS):
        _add_alias(ERRORS, importlib.import_module(MOVED_ERRORS))
    if not _has_module(RENDER):
        module = ModuleType(RENDER)
        vars(module)["OpenAIServingRender"] = _make_serving_render()
        _add_alias(RENDER, module)


@REPLACEMENTS.after(
    MOVED_CHAT,
    why="The server of NeMo-RL's main imports it by its name of vLLM 0.25, before anything else of vLLM's server.",
)
def _add_chat_utils(names: Names) -> None:
    if not _has_module(CHAT):
        _add_alias(CHAT, names.module)


@REPLACEMENTS.after(
    "vllm.entrypoints.serve.tokenize.serving",
    why="The class OpenAIServingTokenization is now ServingTokenization, which takes its engine from the renderer.",
)
def _add_tokenization(names: Names) -> None:
    if hasattr(names.module, "OpenAIServingTokenization"):
        return
    serving = names.module.ServingTokenization

    class OpenAIServingTokenization(serving):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, engine_client: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **_rename_arguments(kwargs))

    vars(names.module)["OpenAIServingTokenization"] = OpenAIServingTokenization


@REPLACEMENTS.after(
    "vllm.v1.engine.output_processor",
    "RequestOutputCollector.__init__",
    "RequestOutputCollector.put",
    why="NeMo-RL's server has an event loop of its own, and another loop may hand it the outputs; asyncio's events are "
    "for one loop, so a request failed with `deque mutated during iteration`.",
)
def _put_outputs_in_own_loop(names: Names) -> None:
    create, put = names.get("RequestOutputCollector.__init__"), names.get("RequestOutputCollector.put")

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        self.loop = _get_running_loop()

    @functools.wraps(put)
    def put_there(self: Any, output: Any) -> None:
        if self.loop in (None, _get_running_loop()):
            put(self, output)
        else:
            self.loop.call_soon_threadsafe(put, self, output)

    names.put("RequestOutputCollector.__init__", __init__)
    names.put("RequestOutputCollector.put", put_there)


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, or None where none runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _rename_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with today's name of the renderer."""
    return {"online_renderer" if name == "openai_serving_render" else name: value for name, value in kwargs.items()}
