"""Dumps on a real S3 server: uploaded, read where they lie, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from conftest import LARGE, Proxy, free_port
from host_dumps import RUN, noise

import ascend_dump
from ascend_dump.cli import main


def test_a_dump_is_uploaded_and_verified_by_the_hash_of_the_store(bucket: str, dump: Path) -> None:
    how: list[str] = []
    url = f"s3://{bucket}/run7"
    done = ascend_dump.push(dump, url, watch=lambda files: (how.append(one.verified) or one for one in files))
    assert (done.uploaded, done.present, set(how)) == (4, 0, {"hash of the store"})
    again: list[str] = []
    done = ascend_dump.push(dump, url, watch=lambda files: (again.append(one.verified) or one for one in files))
    assert (done.uploaded, done.present, set(again)) == (0, 4, {"noted"})
    here = {(one.op_name, one.step): one.numpy().tobytes() for one in ascend_dump.open(dump)}
    assert {(one.op_name, one.step): one.numpy().tobytes() for one in ascend_dump.open(url)} == here


def test_a_file_that_goes_in_parts_is_read_back(bucket: str, dump: Path) -> None:
    """s3fs sends more than 50 MB in parts, of which the store makes no hash of the whole."""
    directory = dump / RUN / "1"
    with open(directory / "tensors-00007.safetensors", "wb") as file:
        file.write(os.urandom(60 << 20))
    how: dict[str, str] = {}

    def watch(files: Any) -> Any:
        for one in files:
            how[one.name.rpartition("/")[2]] = one.verified
            yield one

    ascend_dump.push(dump, f"s3://{bucket}/run7", watch=watch)
    assert how["tensors-00007.safetensors"] == "read back"
    assert how["tensors-00000.safetensors"] == "hash of the store"


def test_a_small_tensor_costs_a_small_range(bucket: str, dump: Path, settings: Any, proxy: Proxy) -> None:
    ascend_dump.push(dump, f"s3://{bucket}/run7")
    settings(proxy.address)
    [record] = ascend_dump.open(f"s3://{bucket}/run7").select(op="small", step=1)
    before = proxy.received
    assert np.array_equal(record.numpy(), noise(10, 5))
    assert proxy.received < 50_000, "listing, index and one tensor of 20 bytes"
    assert proxy.received - before < 2000
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("objects"))


@pytest.mark.parametrize("after", [0, 1000])
def test_a_connection_that_breaks_in_the_middle_is_tried_again(
    after: int, bucket: str, dump: Path, settings: Any, proxy: Proxy
) -> None:
    ascend_dump.push(dump, f"s3://{bucket}/run7")
    settings(proxy.address)
    [record] = ascend_dump.open(f"s3://{bucket}/run7").select(op="large", step=1)
    proxy.cuts, proxy.after = 1, after
    assert np.array_equal(record.numpy(), noise(1, LARGE))
    assert proxy.cuts == 0


def test_a_connection_that_always_breaks_is_told_with_address_and_offset(
    bucket: str, dump: Path, settings: Any, proxy: Proxy
) -> None:
    ascend_dump.push(dump, f"s3://{bucket}/run7")
    settings(proxy.address)
    [record] = ascend_dump.open(f"s3://{bucket}/run7").select(op="large", step=1)
    proxy.cuts, proxy.after = 10_000, 1000
    with pytest.raises(ascend_dump.StorageError, match="the connection broke 3 times") as caught:
        record.numpy()
    assert str(record.path) == str(caught.value.path)
    assert caught.value.offset == 16 << 10  # behind the header of a first shard
    assert caught.value.code == "AD405"
    proxy.cuts = 0
    assert np.array_equal(record.numpy(), noise(1, LARGE))


def test_a_push_that_was_broken_off_goes_on(bucket: str, dump: Path, settings: Any, proxy: Proxy, server: str) -> None:
    settings(proxy.address)
    proxy.spare, proxy.cuts = 6, 10_000
    with pytest.raises(ascend_dump.StorageError, match=f"s3://{bucket}/run7/.*the connection broke"):
        ascend_dump.push(dump, f"s3://{bucket}/run7", jobs=1)
    proxy.cuts = 0
    done = ascend_dump.push(dump, f"s3://{bucket}/run7")
    assert done.uploaded + done.present == 4
    assert 0 < done.present < 4
    assert len(ascend_dump.open(f"s3://{bucket}/run7")) == 4


def test_a_truncated_object_is_told_with_its_place(bucket: str, dump: Path) -> None:
    url = f"s3://{bucket}/run7"
    ascend_dump.push(dump, url)
    shard = f"{url}/{RUN}/1/tensors-00000.safetensors"
    fs, place = fsspec.core.url_to_fs(shard)
    opened = ascend_dump.open(url)
    [before] = opened.select(op="large", step=1)
    fs.pipe_file(place, fs.cat_file(place)[:500_000])
    with pytest.raises(ascend_dump.StorageError, match=rf"{shard} at byte .*the answer ended after"):
        before.numpy()
    [after] = ascend_dump.open(url).select(op="large", step=1)
    with pytest.raises(ascend_dump.CorruptDump, match=rf"{shard} at byte .*its data ends at 500000"):
        after.numpy()
    assert ascend_dump.push(dump, url).uploaded == 1
    [whole] = ascend_dump.open(url).select(op="large", step=1)
    assert np.array_equal(whole.numpy(), noise(1, LARGE))


def test_missing_credentials_are_told(bucket: str, settings: Any, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    settings(server)
    with pytest.raises(ascend_dump.StorageError, match="there are no credentials") as caught:
        ascend_dump.open(f"s3://{bucket}/run7")
    assert caught.value.code == "AD406"
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_missing_bucket_is_told(settings: Any, dump: Path) -> None:
    with pytest.raises(ascend_dump.DumpNotFound, match="s3://no-such-bucket/run7"):
        ascend_dump.open("s3://no-such-bucket/run7")
    with pytest.raises(ascend_dump.StorageError, match="the bucket does not exist"):
        ascend_dump.push(dump, "s3://no-such-bucket/run7")


@pytest.mark.parametrize("verb", ["open", "push"])
def test_a_server_that_is_not_there_is_told(
    verb: str, settings: Any, dump: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings(f"http://127.0.0.1:{free_port()}")
    caplog.set_level("DEBUG", "ascend_dump")
    with pytest.raises(ascend_dump.StorageError, match=r"the store does not answer.*127\.0\.0\.1") as caught:
        ascend_dump.open("s3://bucket/run7") if verb == "open" else ascend_dump.push(dump, "s3://bucket/run7")
    assert "FSSPEC_S3_ENDPOINT_URL" in caught.value.hint
    assert caught.value.code == "AD405"
    # Its client has tried often enough.
    assert "the request is repeated" not in caplog.text


def test_hostile_names_of_objects_lead_nowhere(bucket: str, dump: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"s3://{bucket}/run7"
    ascend_dump.push(dump, url)
    fs, _ = fsspec.core.url_to_fs(url)
    names = (
        "../secret/index.jsonl",
        "a/../../b.npy",
        "./c.npy",
        "d//e.npy",
        "-rf ; touch f/index.jsonl",
        "\x1b[31m.npy",
    )
    for name in names:
        fs.call_s3("put_object", Bucket=bucket, Key=f"run7/{name}", Body=b"x")
    opened = ascend_dump.open(url)
    assert len([record for record in opened if record.error is None]) == 4
    assert ".." not in " ".join(str(record.path) for record in opened)
    assert "4 stored names are not valid paths and are ignored" in caplog.text


def test_what_one_rank_may_read_is_read_when_another_is_missing(bucket: str, dump: Path) -> None:
    url = f"s3://{bucket}/run7"
    ascend_dump.push(dump, url)
    opened = ascend_dump.open(url)
    fs, place = fsspec.core.url_to_fs(f"{url}/{RUN}/0/index.jsonl")
    fs.rm_file(place)
    assert [record.step for record in opened if record.error is None] == [1, 1]
    assert len(opened.errors()) == 1


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_dump", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}, timeout=900
    )


def test_the_verbs_take_addresses(bucket: str, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"s3://{bucket}/run7"
    pushed = run("push", str(dump), url, "--json")
    assert pushed.returncode == 0, pushed.stderr
    assert json.loads(pushed.stdout)["uploaded"] == 4
    assert main(["compare", url, str(dump)]) == 0
    assert main(["compare", url, url]) == 0
    capsys.readouterr()
    for verb in ("ls", "stats", "show", "overflow", "triage"):
        assert main([verb, str(dump), "--json"]) == 0
        here = json.loads(capsys.readouterr().out.replace(str(dump), "ROOT"))
        assert main([verb, url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.replace(url, "ROOT")) == here, verb
    assert main(["convert", url, "-o", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").rglob("*.npy"))) == 4
    assert main(["report", url, "-o", str(tmp_path / "page.html")]) == 0
    failed = run("ls", f"s3://{bucket}/nothing")
    assert failed.returncode == 3
    assert "nothing is stored there" in failed.stderr
    anonymous = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert run("push", str(dump), f"s3://{bucket}/run8", environment=anonymous).returncode == 3
