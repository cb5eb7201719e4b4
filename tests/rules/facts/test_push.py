"""`nemo-ada export --push` against a hub of our own on this machine, through huggingface_hub's real API."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nemo_ada.nemo.launch.export import CARD, newest
from tests.patience import PATIENCE
from tests.rules.facts.test_export import embedded

pytestmark = pytest.mark.long

pytest.importorskip("huggingface_hub")
TOKEN = "hf_" + "a" * 34


class Hub(BaseHTTPRequestHandler):
    """A hub with the requests of an upload. `server.there` has the repositories: name -> private."""

    def _answer(self, value, code=200, **headers):
        body = json.dumps(value).encode()
        self.send_response(code)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self):
        length = int(self.headers.get("Content-Length") or 0)
        sent, server, path = self.rfile.read(length), self.server, self.path.partition("?")[0]
        server.asked.append((self.command, path))
        if path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "who are you?"}, 401)
        elif path == "/api/whoami-v2":
            self._answer({"name": "me", "type": "user", "auth": {"accessToken": {"role": "write"}}})
        elif path == "/api/repos/create":
            asked = json.loads(sent)
            name = "/".join(filter(None, (asked.get("organization") or "me", asked["name"])))
            server.there.setdefault(name, asked.get("private", asked.get("visibility") == "private"))
            self._answer({"url": f"http://{self.headers['Host']}/{name}", "name": name})
        elif (found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/main)?", path)) and self.command == "GET":
            if found[1] in server.there:
                facts = {"id": found[1], "private": server.there[found[1]], "sha": "0" * 40, "siblings": []}
                self._answer(facts)
            else:
                self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif path.endswith("/preupload/main"):
            files = json.loads(sent)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self._answer({"files": modes})
        elif path.endswith("/commit/main"):
            lines = [json.loads(line) for line in sent.splitlines()]
            server.files |= {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines if line["key"] == "file"
            }  # fmt: skip
            url = f"http://{self.headers['Host']}/{'/'.join(path.split('/')[3:5])}/commit/{'1' * 40}"
            self._answer({"success": True, "commitOid": "1" * 40, "commitUrl": url, "hookOutput": ""})
        else:
            self._answer({"error": f"unknown: {self.command} {path}"}, 404)

    do_GET = do_POST = do_HEAD = _handle

    def log_message(self, *_):
        pass


@contextmanager
def hub(**there):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.there, server.files, server.asked = {f"me/{name}": private for name, private in there.items()}, {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def export(folder, *options, url, token=TOKEN):
    """Run the command as a user does. Returns exit code and what was printed."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HF_", "HUGGING")) and key != "TRANSFORMERS_OFFLINE"
    }
    environment |= {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "none")}
    environment |= {} if token is None else {"HF_TOKEN": token}
    done = subprocess.run(
        [sys.executable, "-m", "nemo_ada.cli", "export", str(folder), *options], capture_output=True, text=True,
        env=environment, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_an_export_is_pushed_privately_with_its_model_card(tmp_path):
    run = tmp_path / "run"
    embedded(run, 10)
    with hub() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        code, told = export(run, "--push", "me/first", url=url)
        assert code == 0, told
        assert server.there == {"me/first": True}
        folder = run / "hf" / newest(run, None).name
        assert server.files[CARD] == (folder / CARD).read_bytes()
        assert {"config.json", "model.safetensors"} <= set(server.files) <= {file.name for file in folder.iterdir()}
        code, told = export(run, "--push", "me/first", url=url)  # a second time: the folder is there
        assert code == 0, told
        assert TOKEN not in told


def test_what_a_push_lacks_is_said_before_anything_is_written(tmp_path):
    run = tmp_path / "run"
    embedded(run, 10)
    with hub(seen=False) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        for options, token, where, remedy in (
            (["--push", "first"], TOKEN, "--push=first", "OWNER/NAME"),
            (["--push", "me/first"], None, "--push", "HF_TOKEN"),
            (["--push", "me/first"], "hf_" + "b" * 34, "me/first", "HF_TOKEN"),
            (["--push", "me/seen"], TOKEN, "me/seen", "--public"),
            (["--public"], TOKEN, "--public", "--push"),
        ):
            code, told = export(run, *options, url=url, token=token)
            assert code == 2 and "Traceback" not in told, told
            assert where in told and remedy in told, told
            assert server.files == {} and not (run / "hf").exists()
        assert export(run, "--push", "me/seen", "--public", url=url)[0] == 0  # the remedy works
    code, told = export(run, "--push", "me/first", url="http://127.0.0.1:9")
    assert code == 2 and "internet" in told, told
