"""`nemo-ada prepare` against a hub on this machine: fetched once, then loaded in a network without a route."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.prepare import find_isolation, prepare
from nemo_ada.rules.facts import hub
from nemo_ada.tasks.tokenizer import CharTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "rules" / "check"))
from recipes import changed

pytestmark = pytest.mark.long

pytest.importorskip("transformers")
SHA = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One model, org/small, as the hub's API and its files."""

    files: Path

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        names = sorted(file.name for file in self.files.iterdir())
        if path.startswith("/api/models/org/small/tree/"):
            tree = [{"type": "file", "path": name, "size": 1, "oid": SHA} for name in names]
            self.reply(json.dumps(tree).encode())
        elif path.startswith("/api/models/org/small"):
            siblings = [{"rfilename": name} for name in names]
            self.reply(json.dumps({"id": "org/small", "sha": SHA, "siblings": siblings}).encode())
        elif path.startswith("/org/small/resolve/") and (self.files / path.rpartition("/")[2]).is_file():
            self.reply((self.files / path.rpartition("/")[2]).read_bytes())
        else:
            self.reply(b"", 404)

    def reply(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty HF_HOME, and a hub that has org/small."""
    files = tmp_path / "small"
    files.mkdir()
    CharTokenizer("abc").write_hf(files)
    (files / "config.json").write_text('{"model_type": "qwen2"}')
    (files / "pytorch_model.bin").touch()
    (files / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Small", (Hub,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield tmp_path / "home"
    server.shutdown()


def config(path, model):
    path.write_text(yaml.safe_dump(changed({"policy.model_name": model, "data.train.data_path": str(path)})))
    return path


def test_a_model_is_fetched_and_then_loads_without_a_network(home, tmp_path):
    said = []
    assert hub.ask_hub("org/small") == "there" and hub.ask_hub("org/other") == "missing"
    prepare(config(tmp_path / "config.yaml", "org/small"), [], say=said.append)
    assert said[0].startswith("site settings: ")
    assert said[1] == f"cache: {home}" and said[2].startswith("* fetch org/small: ")
    assert said[3].endswith("tokens, a qwen2")
    assert said[-1] == f"all of it was loaded again {find_isolation()[1]}"
    folder = hub.find_snapshot("org/small")
    assert folder is not None and hub.find_missing_files(folder, weights=True) == []
    assert not (folder / "pytorch_model.bin").exists(), "a copy of the weights in another format"


def test_what_the_hub_does_not_have_is_named(home, tmp_path):
    with pytest.raises(UserError, match=r"org/other: .*not fetched"):
        prepare(config(tmp_path / "config.yaml", "org/other"), [], say=lambda line: None)


def test_no_connection_leaves_an_isolated_process(home):
    import os
    import subprocess

    prefix, how = find_isolation()
    if not prefix:
        pytest.skip(how)
    ask = f"import urllib.request; urllib.request.urlopen('{os.environ['HF_ENDPOINT']}/api/models/org/small')"
    assert subprocess.run([sys.executable, "-c", ask], check=False, capture_output=True).returncode == 0
    assert subprocess.run([*prefix, sys.executable, "-c", ask], check=False, capture_output=True).returncode != 0
