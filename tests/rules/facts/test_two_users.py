"""Files of another user above the working folder decide nothing, and the hub's token goes to the hub only."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rules.facts import hub
from nemo_ada.rules.facts.site import CODE, describe_site, find_project, read_site_setting
from tests.people import OTHER, needs_two_users


@pytest.fixture(autouse=True)
def nobody_named_a_place(monkeypatch):
    for name in ("NEMO_ADA_HOME", "NEMO_ADA_SITE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_plantedplantedplanted")
    hub.ask_hub.cache_clear()
    yield
    hub.ask_hub.cache_clear()


@pytest.fixture
def stranger():
    """A server, its address, and the headers of the requests that it got."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            if self.path.startswith("/api/models/moved/"):
                self.send_response(307)
                self.send_header("Location", f"{self.server.next}/api/models/o/m")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_arguments):
            pass

    servers = [HTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.next = addresses[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield addresses[0], seen
    for server in servers:
        server.shutdown()
        server.server_close()


def plant(shared, text, owner):
    """A project's folder with a site.env, which belongs to `owner`, in a shared folder."""
    (shared / "slurm").mkdir()
    (shared / "slurm" / "lib.sh").write_text("")
    (shared / "slurm" / "site.env").write_text(text)
    for path in (shared / "slurm", *(shared / "slurm").iterdir()):
        os.chown(path, owner, owner)


def mine_below(shared, monkeypatch):
    """A folder of the user below the shared one, as working folder."""
    (shared / "mine").mkdir(mode=0o700)
    monkeypatch.chdir(shared / "mine")


@needs_two_users
@pytest.mark.parametrize("shared_mode", [0o755, 0o1777])
def test_a_planted_site_file_is_not_read_and_gets_no_token(tmp_path, monkeypatch, stranger, shared_mode):
    address, seen = stranger
    plant(tmp_path, f"HF_ENDPOINT={address}\nHF_HOME={tmp_path}\n", OTHER)
    tmp_path.chmod(shared_mode)
    for place in (tmp_path, tmp_path / "mine"):
        if place != tmp_path:
            mine_below(tmp_path, monkeypatch)
        monkeypatch.chdir(place)
        assert find_project() == CODE
        assert (read_site_setting("HF_ENDPOINT"), read_site_setting("HF_HOME")) == ("", "")
    monkeypatch.setattr(hub, "HUB", "http://127.0.0.1:9")  # nothing leaves this machine
    assert hub.ask_hub("o/m") == "no answer"
    assert seen == []


@pytest.mark.parametrize("owner", [os.getuid(), pytest.param(OTHER, marks=needs_two_users)])
def test_a_site_file_near_the_working_folder_is_read_once_the_user_names_it(tmp_path, monkeypatch, owner):
    """A download belongs to its user, so neither owner nor mode shows whose settings these are; bash runs them."""
    plant(tmp_path, "HF_HOME=/planted\n", owner)
    mine_below(tmp_path, monkeypatch)
    file = tmp_path / "slurm" / "site.env"
    assert (
        find_project() == CODE
        and read_site_setting("HF_HOME") == ""
        and f"NEMO_ADA_SITE={file} names it" in describe_site()
    )
    monkeypatch.setenv("NEMO_ADA_SITE", str(file))
    assert read_site_setting("HF_HOME") == "/planted"


@needs_two_users
def test_the_site_file_of_the_project_is_read_where_it_is_ours(tmp_path, monkeypatch):
    plant(tmp_path, "HF_HOME=/ours\n", os.getuid())
    monkeypatch.setenv("NEMO_ADA_HOME", str(tmp_path))
    assert read_site_setting("HF_HOME") == "/ours"
    (tmp_path / "slurm").chmod(0o777)
    with pytest.raises(UserError, match=r"its folder .* every user may write it"):
        read_site_setting("HF_HOME")
    (tmp_path / "slurm").chmod(0o755)
    os.chown(tmp_path / "slurm" / "site.env", OTHER, OTHER)
    with pytest.raises(UserError, match="is not used: it belongs to"):
        read_site_setting("HF_HOME")


def test_the_token_goes_only_to_a_host_that_the_environment_names(tmp_path, monkeypatch, stranger):
    address, seen = stranger
    plant(tmp_path, f"HF_ENDPOINT={address}\n", os.getuid())
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "slurm" / "site.env"))
    monkeypatch.chdir(tmp_path)
    assert hub.ask_hub("o/m") == "there" and "Authorization" not in seen[-1]
    hub.ask_hub.cache_clear()
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert hub.ask_hub("o/m") == "there" and seen[-1]["Authorization"] == "Bearer hf_plantedplantedplanted"


def test_a_redirect_does_not_take_the_token_to_another_host(monkeypatch, stranger):
    address, seen = stranger
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert hub.ask_hub("moved/m") == "there"
    assert ["Authorization" in headers for headers in seen] == [True, False]
