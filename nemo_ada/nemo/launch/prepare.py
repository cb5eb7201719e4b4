"""`nemo-ada prepare` puts what a config loads from the hub into the shared cache. Then it loads it without a network.

It loads everything again because a job's nodes may have no network, and a file that is missing should be seen here and
not there.

Both halves run as child processes, `python -m nemo_ada.nemo.launch.prepare fetch|load ITEMS`, because the libraries
read HF_HOME and the proxies only once, from their environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.hub import BUILT_IN, Kind, find_cache, find_missing_files, list_needs
from nemo_ada.rules.facts.site import describe_site
from nemo_ada.run import start

Item = tuple[str, Kind, bool]  # repository, kind, with weights
SAID = "* "  # begins our lines in a child's output
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # of a model; no copies in other formats
NAMESPACE = ("unshare", "--map-root-user", "--net")  # a network without a route
REFUSING = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def prepare(path: Path, overrides: Sequence[str], *, say: Callable[[str], object]) -> None:
    """Fetch everything, and load everything again. Raises UserError for the first failure."""
    values = Values(load_config(path, overrides))
    wanted = list(dict.fromkeys((name, kind, key == "policy.model_name") for key, name, kind in list_needs(values)))
    environment = start.make_environment(HF_HOME=str(find_cache()))
    online = {key: value for key, value in start.make_environment(*TOKENS).items() if key not in OFFLINE}
    online["HF_HOME"] = environment["HF_HOME"]
    say(f"site settings: {describe_site()}")
    say(f"cache: {find_cache()}")
    say(_run_child("fetch", wanted, online, (), "not fetched; is there internet here, and HF_TOKEN?"))
    prefix, how = find_isolation()
    say(_run_child("load", wanted, {**environment, **OFFLINE, **REFUSING}, prefix, f"does not load {how}"))
    say(f"all of it was loaded again {how}")
    for split in ("train", "validation"):
        dataset = values.get(f"data.{split}.dataset_name", "ResponseDataset")
        if dataset not in (*BUILT_IN, "ResponseDataset"):
            say(f"not prepared: data.{split}.dataset_name={dataset}, which NeMo-RL's own code fetches")


def find_isolation() -> tuple[Sequence[str], str]:
    """Return a prefix that runs a command without a network, where the kernel allows it, and a name for that.

    Elsewhere a proxy that refuses takes its place. It stops the libraries, which obey it, and nothing that does not.
    """
    try:
        allowed = start.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    return (NAMESPACE, "in a network without a route") if allowed else ((), "with a proxy that refuses")


def _run_child(
    what: str, wanted: Sequence[Item], environment: Mapping[str, str], prefix: Sequence[str], otherwise: str
) -> str:
    command = [
        *prefix,
        *start.make_python_command(sys.executable, "-m", "nemo_ada.nemo.launch.prepare", what, json.dumps(wanted)),
    ]
    done = start.run(command, env=dict(environment), stdout=start.PIPE, stderr=start.STDOUT, text=True)
    lines = done.stdout.strip().splitlines() or ["no message"]
    if done.returncode:
        raise UserError(f"{lines[-1][:500]}: {otherwise}")
    return "\n".join(line for line in lines if line.startswith(SAID)) or "nothing is needed of the hub"


def fetch(name: str, kind: Kind, *, weights: bool) -> str:
    """Download one repository. Returns a description of what was downloaded."""
    if kind == "dataset":
        return load(name, kind, weights=False)
    from huggingface_hub import snapshot_download

    patterns = FILES if weights else [pattern for pattern in FILES if pattern != "*.safetensors"]
    folder = Path(snapshot_download(name, allow_patterns=patterns))
    lacks = find_missing_files(folder, weights=weights)
    if lacks:
        raise UserError(f"{folder} lacks {', '.join(lacks[:5])}")
    return f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) / 2**30:.2f} GiB"


def load(name: str, kind: Kind, *, weights: bool) -> str:
    """Load one repository with the libraries that NeMo-RL uses. Returns a description of what was loaded."""
    if kind == "dataset":
        import datasets  # type: ignore[import-not-found]

        return ", ".join(f"{len(rows)} rows in {split}" for split, rows in datasets.load_dataset(name).items())
    from transformers import AutoConfig, AutoTokenizer

    tokens = len(AutoTokenizer.from_pretrained(name))
    return f"{tokens} tokens" + (f", a {AutoConfig.from_pretrained(name).model_type}" if weights else "")


def main(what: str, wanted: str) -> None:
    """Run as the child process: fetch or load all items. The last line names the item that failed."""
    for name, kind, weights in json.loads(wanted):
        try:
            outcome = {"fetch": fetch, "load": load}[what](name, kind, weights=weights)
        except Exception as problem:  # noqa: BLE001 - of libraries; the parent says what would work
            sys.exit(f"{name}: {type(problem).__name__}: {' '.join(str(problem).split())[:400]}")
        sys.stdout.write(f"{SAID}{what} {name}: {outcome}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
