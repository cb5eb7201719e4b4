"""Where records come from: local files without a network, and clear words where something is missing."""

from __future__ import annotations

import json
import os
import sys

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data.problem import parse_record
from nemo_ada.lab.data.source import open_hub, open_source
from nemo_ada.lab.data.stages import parse_band
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS
from nemo_ada.verify.reference import Reader


def test_a_files_identity_is_its_content_not_its_place(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text("{}")
    first, second = (open_source(str(tmp_path / folder / "a.jsonl")).identity for folder in ("x", "y"))
    assert first == second
    (tmp_path / "y" / "a.jsonl").write_text("{} ")
    assert open_source(str(tmp_path / "y" / "a.jsonl")).identity != first


def test_parquet_rows_are_read_in_order_and_damage_is_one_clear_line(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [{"problem": f"{n}+1=", "gt": n + 1} for n in range(3000)]
    path, damaged = tmp_path / "a.parquet", tmp_path / "damaged.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(open_source(str(path)).records()) == list(enumerate(rows, start=1))
    assert parse_record(1, rows[0], PROMPT_FIELDS, ANSWER_FIELDS, Reader()).answer == "1"
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


def test_a_data_set_of_the_hub_is_read_with_the_real_library(tmp_path, monkeypatch):
    """The library takes a folder owner/name for a data set of the hub; the name of its version is a hash here."""
    datasets = pytest.importorskip("datasets")
    rows = [{"problem": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(5)]
    (tmp_path / "owner" / "math").mkdir(parents=True)
    (tmp_path / "owner" / "math" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    found = open_hub("owner/math", "test", None, None)
    assert list(found.records()) == list(enumerate(rows, start=1)) == list(found.records())
    assert found.identity.pop("revision")
    assert found.identity == {"dataset": "owner/math", "subset": None, "split": "test"}
    with pytest.raises(UserError, match=r"the data set 'owner/math' \(split dev\) cannot be read: .*dev"):
        open_hub("owner/math", "dev", None, None)
    (tmp_path / "owner" / "math" / "test.jsonl").write_text("{broken")
    with pytest.raises(UserError, match=r"the data set 'owner/math' \(split test\) cannot be read"):
        open_hub("owner/math", "test", None, None)


def test_images_of_a_hub_set_are_left_alone_and_their_rows_are_refused(tmp_path, monkeypatch):
    """The library decodes a column of images where it hands out rows, which needs Pillow and real images."""
    datasets = pytest.importorskip("datasets")
    image = {"bytes": b"no image", "path": None}
    features = datasets.Features(
        {"problem": datasets.Value("string"), "answer": datasets.Value("string"), "images": [datasets.Image()]}
    )
    columns = {"problem": ["<image>Find x", "1+1="], "answer": ["3", "2"], "images": [[image], []]}
    folder = tmp_path / "owner" / "geometry"
    folder.mkdir(parents=True)
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(folder / "train.parquet"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (_, first), (_, second) = open_hub("owner/geometry", "train", None, None).records()
    assert parse_record(2, second, PROMPT_FIELDS, ANSWER_FIELDS).answer == "2"
    with pytest.raises(ValueError, match="its 'images' holds an image"):
        parse_record(1, first, PROMPT_FIELDS, ANSWER_FIELDS)


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


@pytest.mark.parametrize("name", ["-", "pipe"])
def test_a_pipe_is_refused_with_what_works(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"a pipe can be read only once.*write them to a file"):
        open_source(name)
