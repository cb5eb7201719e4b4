"""Where records come from: local files without a network, and clear words where something is missing."""

from __future__ import annotations

import json
import sys

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data import source
from nemo_ada.lab.data.problem import parse_record
from nemo_ada.lab.data.source import open_source, pinned
from nemo_ada.lab.data.stages import parse_band
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS


def test_lines_keep_their_numbers_and_blank_ones_are_passed_over(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert [(number, json.loads(line)) for number, line in open_source(str(path)).records()] == [
        (1, {"a": 1}),
        (4, {"a": 2}),
    ]


def test_a_files_identity_is_its_content_not_its_place(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text("{}")
    first, second = (open_source(str(tmp_path / folder / "a.jsonl")).identity() for folder in ("x", "y"))
    assert first == second
    (tmp_path / "y" / "a.jsonl").write_text("{} ")
    assert open_source(str(tmp_path / "y" / "a.jsonl")).identity() != first


def test_parquet_rows_are_read_in_order_and_damage_is_one_clear_line(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [{"problem": f"{n}+1=", "gt": n + 1} for n in range(3000)]
    path, damaged = tmp_path / "a.parquet", tmp_path / "damaged.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(open_source(str(path)).records()) == list(enumerate(rows, start=1))
    assert parse_record(1, rows[0], PROMPT_FIELDS, ANSWER_FIELDS).answer == "1"
    whole = path.read_bytes()
    for data in (b"no parquet", whole[:-20], whole[:4] + b"\xff" * 3000 + whole[3004:]):
        damaged.write_bytes(data)
        with pytest.raises(UserError, match=r"damaged\.parquet is no Parquet file, or is damaged after row") as refused:
            list(open_source(str(damaged)).records())
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("a.parquet", "pyarrow", "need the package pyarrow"),
        ("owner/some-set", "datasets", r"'owner/some-set' .* need the package datasets.* the local JSONL"),
    ],
)
def test_without_a_package_the_message_says_what_to_do(tmp_path, monkeypatch, name, missing, message):
    (tmp_path / "a.parquet").touch()
    monkeypatch.chdir(tmp_path)
    for module in (missing, f"{missing}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=message):
        next(iter(open_source(name).records()))


def test_a_hub_id_without_a_network_is_refused_at_once_and_asked_for_through_a_proxy(monkeypatch):
    """The package is there (a stand-in that must not be asked without a proxy), the hub's host is not."""
    pytest.importorskip("huggingface_hub")
    stand_in, proxies = type(sys)("datasets"), ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", *proxies):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="no network to the Hugging Face hub; download it"):
        next(iter(open_source("owner/some-set").records()))

    def load_dataset(*_arguments, streaming, **_options):
        assert streaming
        raise ValueError("no such split\nfurther lines")

    stand_in.load_dataset = load_dataset
    for name in proxies:
        with monkeypatch.context() as proxy:
            proxy.setenv(name, "http://127.0.0.1:9")
            with pytest.raises(UserError, match="cannot be read: no such split; download it"):
                next(iter(open_source("owner/some-set").records()))


class Hub:
    """A hub whose main branch moves."""

    def __init__(self, monkeypatch):
        self.head, self.read = "c1", []
        modules = {name: type(sys)(name) for name in ("datasets", "huggingface_hub")}
        modules["datasets"].load_dataset = self.load
        modules["huggingface_hub"].HfApi = lambda: self
        modules["huggingface_hub"].constants = type("constants", (), {"HF_HUB_CACHE": "nowhere"})
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(source, "_reachable", lambda: True)

    def dataset_info(self, _name, *, revision, timeout):
        return type("info", (), {"sha": self.head if revision is None else revision})

    def load(self, name, _subset, *, split, revision, streaming):
        self.read.append((name, split, revision))
        return [{"problem": "1+1=", "answer": 2}]


def test_a_continued_command_reads_the_commit_of_its_start_whatever_happened_on_the_hub(tmp_path, monkeypatch):
    hub = Hub(monkeypatch)
    for _ in range(2):
        own = pinned(tmp_path, {"math": open_source("owner/math", split="test")})["math"]
        assert own.commit() == "c1" and list(own.records()) == [(1, {"problem": "1+1=", "answer": 2})]
        assert own.identity() == {"dataset": "owner/math", "subset": None, "split": "test", "revision": None}
        hub.head = "c2"
    assert hub.read == [("owner/math", "test", "c1")] * 2
    assert json.loads((tmp_path / "sources.json").read_text()) == {"math": "c1"}
    (tmp_path / "new").mkdir()
    assert pinned(tmp_path / "new", {"math": open_source("owner/math", revision="c0")})["math"].commit() == "c0"


def test_offline_the_commit_is_that_of_the_local_cache_or_a_warning(tmp_path, monkeypatch, caplog):
    Hub(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert source.hub_commit("owner/math", None) is None and "its commit is not known" in caplog.text
    refs = tmp_path / "datasets--owner--math" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("c7")
    sys.modules["huggingface_hub"].constants.HF_HUB_CACHE = str(tmp_path)
    assert source.hub_commit("owner/math", None) == "c7"


def test_a_hub_id_offline_names_the_variable(monkeypatch):
    stand_in = type(sys)("datasets")

    def load_dataset(*_arguments, streaming, **_options):
        assert not streaming
        raise ConnectionError("offline mode")

    stand_in.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set and the local cache does not hold it"):
        next(iter(open_source("owner/some-set").records()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "no such file") for name in ("nowhere.jsonl", "a/b/c", "no such", "owner/file.jsonl")),
        (__file__, r"unknown suffix '\.py'"),
    ],
)
def test_a_name_that_is_no_source_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        open_source(name)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("v1", [1 / 16, 1.0], [0.0]),
        ("v3", [1 / 16, 6 / 16], [0.0, 7 / 16]),
        ("easy", [1 / 16, 5 / 16], [0.0, 6 / 16]),
        ("hard", [1 / 16, 2 / 16], [0.0, 3 / 16]),
        ("0.25,0.5", [0.25, 0.5], [0.2499, 0.5001]),
        ("0,0", [0.0], [1 / 16]),
    ],
)
def test_bands_hold_the_published_counts_of_16(name, inside, outside):
    band = parse_band(name)
    assert all(map(band.holds, inside)) and not any(map(band.holds, outside))


@pytest.mark.parametrize("name", ["medium", "0.5", "0.9,0.1", "-1,1", "0,2", "nan,1"])
def test_a_band_that_is_none_is_refused(name):
    with pytest.raises(UserError, match="--band="):
        parse_band(name)
