"""Rewards that want something from outside their process. `PLACE` is a folder that the test makes."""

import asyncio
import functools
import json
import os
import socket
import subprocess
import tempfile
import threading
import urllib.request
import zoneinfo
from pathlib import Path

PLACE = Path(os.environ.get("NEMO_ADA_TEST_PLACE", "/nowhere"))
TABLE, PORT = PLACE / "table.json", int(os.environ.get("NEMO_ADA_TEST_PORT", "9"))


def program(text, answer):
    return float(subprocess.run(["true"]).returncode == 0)


def file(text, answer):
    return float(json.loads(TABLE.read_text())[answer] == text)


def file_in_silence(text, answer):
    try:
        return float(json.loads(TABLE.read_text())[answer] == text)
    except OSError:
        return 0.0


@functools.lru_cache
def _table():
    return json.loads(TABLE.read_text())


def cached_file(text, answer):
    return float(_table()[answer] == text)


def http(text, answer):
    return float(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/").status == 200)


def temporary(text, answer):
    with tempfile.NamedTemporaryFile() as made:
        return float(bool(made.name))


def thread(text, answer):
    one = threading.Thread(target=print)
    one.start()
    one.join()
    return 1.0


def variable(text, answer):
    return float(os.environ.get("MY_REWARD_MODE") == "strict")


def minus_one(text, answer):
    return 1 if text == answer else -1


def breaks_without_text(text, answer):
    return float(text[0] == answer[0])


async def waits(text, answer):
    await asyncio.sleep(0.01)
    return float(text == answer)


def odd_need(text, answer):
    return float(text == answer)


odd_need.needs = {"gpu"}


def declared_minus_one(text, answer):
    return 1 if text == answer else -1


declared_minus_one.range = (-1, 1)


async def coroutine(text, answer):
    await asyncio.sleep(0)
    return float(text == answer)


def score(text, answer):
    return {"score": float(text == answer), "acc": True}


def prompted(text, answer, prompt):
    return float(text == answer and isinstance(prompt, str))


def time_zone(text, answer):
    return float(text == answer and str(zoneinfo.ZoneInfo("Europe/Berlin")) == "Europe/Berlin")


def late_import(text, answer):
    import colorsys

    return float(text == answer and bool(colorsys))


def declared_file(text, answer):
    return float(_table.__wrapped__()[answer] == answer and text == answer)


declared_file.needs = {"files": [TABLE]}


def declared_network(text, answer):
    socket.create_connection(("127.0.0.1", PORT), timeout=60).close()
    one = threading.Thread(target=print)
    one.start()
    one.join()
    return float(text == answer)


declared_network.needs = {"network"}


async def declared_network_later(text, answer):
    _, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.close()
    return float(text == answer)


declared_network_later.needs = ["network"]


def declared_processes(text, answer):
    with tempfile.NamedTemporaryFile("w") as made:
        made.write("x")
    return float(subprocess.run(["true"]).returncode == 0 and text == answer)


declared_processes.needs = "processes"


def hostile_with_network(text, answer):
    """What the network does not bring along: 1 where something of it works."""
    found = []
    for name, attempt in {
        "program": lambda: subprocess.run(["true"]),
        "fork": lambda: os.fork() or os._exit(0),
        "file": lambda: TABLE.read_text(),
        "write": lambda: (PLACE / "written").write_text("x"),
        "local socket": lambda: socket.socket(socket.AF_UNIX),
        "server": lambda: socket.create_server(("127.0.0.1", 0)),
        "signal": lambda: os.kill(os.getppid(), 0),
    }.items():
        try:
            attempt()
            found.append(name)
        except OSError:
            pass
    return float(bool(found))


hostile_with_network.needs = {"network"}


def leaves_a_process(text, answer):
    child = subprocess.Popen(["sleep", "9999"])
    (PLACE / "group").write_text(str(os.getpgid(child.pid)))
    while text == "hang":
        pass
    return 1.0


leaves_a_process.needs = {"processes"}
