"""The Hugging Face cache that nodes share, and the hub behind it.

Why not huggingface_hub: HF_HOME may come from site.env, and the library reads it from the environment only. Its
snapshot_download refuses a copy that lacks files of the repository, and ours has only the files that a run loads. Its
requests use another HTTP library, with other errors, in each major version.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.site import read_site_setting
from nemo_ada.run.files import json_of, text_of
from nemo_ada.run.inputs import find_cached

Kind = Literal["model", "dataset"]
SECONDS = 5
HUB = "https://huggingface.co"
MAX_ANSWER = 64 << 20  # bytes
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them makes a tokenizer
BUILT_IN = {"AIME2024": "HuggingFaceH4/aime_2024", "AIME2026": "MathArena/aime_2026"}  # NeMo-RL's names for these sets
LOCAL = (".json", ".jsonl", ".parquet", ".arrow", ".csv", ".txt")  # files, not repositories
REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def list_needs(values: Values) -> Iterator[tuple[str, str, Kind]]:
    """Yield what a run loads from the hub: key, repository and kind of model, tokenizer and data sets.

    Local folders are not listed.
    """
    model = str(values.get("policy.model_name", ""))
    if not Path(model).is_dir():
        yield "policy.model_name", model, "model"
    tokenizer = str(values.get("policy.tokenizer.name", model))
    if tokenizer != model and not Path(tokenizer).is_dir():
        yield "policy.tokenizer.name", tokenizer, "model"
    for split in ("train", "validation"):
        name = str(values.get(f"data.{split}.dataset_name", ""))
        path = values.get(f"data.{split}.data_path")
        if path is not None and not Path(str(path)).exists() and Path(str(path)).suffix not in LOCAL:
            yield f"data.{split}.data_path", str(path), "dataset"
        elif path is None and name in BUILT_IN:
            yield f"data.{split}.dataset_name", BUILT_IN[name], "dataset"


def find_cache() -> Path:
    """Return HF_HOME of the environment or of site.env."""
    return Path(read_site_setting("HF_HOME") or "~/.cache/huggingface").expanduser()


def find_snapshot(name: str, kind: Kind = "model") -> Path | None:
    """Return the folder of a repository's newest cached version, or None where the cache has none."""
    return find_cached(Path(os.environ.get("HF_HUB_CACHE") or find_cache() / "hub"), name, kind)


def has_prepared(name: str) -> bool:
    """Return whether the cache has the files that `datasets` prepares. It needs them without a network."""
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or find_cache() / "datasets")
    like = _keep_letters(name.replace("/", "___"))  # the folder's name is in snake case
    same = [sets for sets in folder.glob("*___*") if _keep_letters(sets.name) == like]
    return any(next(sets.rglob("*.arrow"), None) is not None for sets in same)


def _keep_letters(name: str) -> str:
    return name.replace("_", "").lower()


def find_missing_files(folder: Path, *, weights: bool) -> list[str]:
    """Return what a model's or tokenizer's folder lacks. A link of the cache without its file counts as missing.

    The hub's cache has links to its files, and one that was copied or cleaned in part may lack these.
    """
    lacks = [] if any((folder / name).exists() for name in TOKENIZER) else [TOKENIZER[0]]
    if not weights:
        return lacks
    wanted = {"config.json"}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = json_of(index)
        named = listed.get("weight_map") if isinstance(listed, dict) else None
        if not isinstance(named, dict):
            return [*lacks, f"the names of files in {index.name}"]
        wanted |= set(map(str, named.values()))
    elif not any(folder.glob("*.safetensors")):
        wanted.add("model.safetensors")
    return lacks + sorted(name for name in wanted if not (folder / name).exists())


def find_code(folder: Path) -> list[str]:
    """Return the files of a model's folder that are code of its own, or name some. Libraries run it where they may."""
    mapped = [file.name for file in sorted(folder.glob("*.json")) if "auto_map" in _read_text(file)]
    return [
        *(str(file.relative_to(folder)) for file in sorted(folder.rglob("*.py"))),
        *(f"auto_map in {name}" for name in mapped),
    ]


def _read_text(file: Path) -> str:
    try:
        return text_of(file, errors="replace")
    except OSError:
        return ""


def is_offline() -> bool:
    """Return whether the libraries must not ask the hub."""
    return any(
        read_site_setting(name).lower() in ("1", "true", "on", "yes") for name in ("HF_HUB_OFFLINE", "HF_OFFLINE")
    )


@cache
def ask_hub(name: str, kind: Kind = "model") -> Literal["there", "missing", "gated", "no answer"]:
    """Ask the hub whether it has a repository."""
    if not REPOSITORY.fullmatch(name):
        return "missing"
    endpoint = read_site_setting("HF_ENDPOINT") or HUB
    token = _read_token() if may_have_token(endpoint) else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{endpoint}/api/{kind}s/{name}", headers=headers)
        with urllib.request.build_opener(_TokenStays).open(request, timeout=SECONDS) as answer:
            said = json.loads(answer.read(MAX_ANSWER))
    except urllib.error.HTTPError as refusal:
        return "missing" if refusal.code in (401, 403, 404) else "no answer"
    except (OSError, ValueError):
        return "no answer"
    return "gated" if said.get("gated") and not token else "there"


def may_have_token(endpoint: str) -> bool:
    """Return whether the user's token may go to this address: to the hub, or to one that the environment names."""
    return endpoint.rstrip("/") in (HUB, os.environ.get("HF_ENDPOINT", HUB).rstrip("/"))


class _TokenStays(urllib.request.HTTPRedirectHandler):
    """Follows the hub to a repository's new name, but never takes the token to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Make the next request."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


def _read_token() -> str:
    """Return the user's own token, as the libraries find it."""
    try:
        return os.environ.get("HF_TOKEN") or text_of(find_cache() / "token").strip()
    except (OSError, ValueError):
        return ""
