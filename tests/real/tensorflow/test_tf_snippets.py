"""The document's programs on the simulated NPU: their own settings, and the adapter in place of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

# Private: the watchers of sessions are global, and are seen nowhere else.
from ascend_dump_tensorflow import _hook, apply
from snippets import SNIPPETS, Snippet, run
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.keras import backend as legacy_backend

import ascend_dump
import ascend_dump.fakes


class Configs:
    """What the sessions of a program were made with."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def configure(self, config: Any) -> Any:
        return config

    def created(self, session: Any) -> None:
        copy = tf.ConfigProto()
        copy.CopyFrom(session._config)
        self.found.append(copy)


@contextlib.contextmanager
def npu(tmp_path: Path) -> Iterator[tuple[dict[str, Any], Configs]]:
    """A process with the fake bridge: names for a script, and the configurations of its sessions."""
    configs = Configs()
    for backend in (tf.keras.backend, legacy_backend):
        backend.clear_session()
    tf.set_random_seed(7)
    with ascend_dump.fakes.install("npu_bridge"):
        import npu_bridge.npu_init  # noqa: F401  (the fake watches sessions from its import on)

        _hook.watch(configs)
        try:
            yield {"__name__": "__main__", "model_dir": str(tmp_path / "model")}, configs
        finally:
            _hook.unwatch(configs)


def with_settings(snippet: Snippet, tmp_path: Path) -> tuple[dict[str, Any], ascend_dump.Dump, list[Any]]:
    """The program as the document has it, but for the directory."""
    place = tmp_path / "document"
    place.mkdir()
    with npu(tmp_path / "1") as (names, configs):
        run(snippet.settings.replace("/home/HwHiAiUser/output", str(place)), names)
        run(snippet.program, names)
    return names, ascend_dump.open(place), configs.found


def with_capture(snippet: Snippet, tmp_path: Path, **settings: Any) -> tuple[dict[str, Any], Any, list[Any]]:
    """The program without its dump settings, inside a capture."""
    with npu(tmp_path / "2") as (names, configs):
        run(snippet.without_dump, names)
        target = eval(snippet.target, names)
        asked = {"steps": "0|5|10", "mode": "all", "framework": "tensorflow", **settings}
        with ascend_dump.capture(target, path=tmp_path / "adapter", **asked) as cap:
            run(snippet.program, names)
    return names, cap, configs.found


def records(dump: ascend_dump.Dump) -> list[tuple[Any, ...]]:
    """Everything about a dump that does not depend on when it was made.

    An Estimator's hooks read the global step in the run that increases it, and TensorFlow does not order the two.
    """
    return sorted(
        (one.step, one.op_type, one.op_name, one.io, one.index, str(one.dtype), one.shape, one.numpy().tobytes())
        for one in dump
        if not one.op_name.startswith("global_step/")
    )


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the bit: arrays, or lists of them."""
    return len(one) == len(other) and all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other)
    )


def comparable(config: Any) -> bytes:
    """A configuration without the one value that must differ, as bytes."""
    copy = tf.ConfigProto()
    copy.CopyFrom(config)
    for entry in copy.graph_options.rewrite_options.custom_optimizers:
        if "dump_path" in entry.parameter_map:
            entry.parameter_map["dump_path"].s = b"DUMPDIR"
    return copy.SerializeToString(deterministic=True)


@pytest.fixture(params=SNIPPETS)
def snippet(request: pytest.FixtureRequest) -> Snippet:
    return SNIPPETS[request.param]


def test_a_program_dumps_the_same_with_the_adapter_as_with_the_documents_settings(
    snippet: Snippet, tmp_path: Path
) -> None:
    document, expected, _ = with_settings(snippet, tmp_path)
    adapter, cap, _ = with_capture(snippet, tmp_path)
    found = records(cap.dump())
    assert any(name.startswith("MatMul") for _, name, *_ in found)
    # Some graphs of an Estimator run more often than the one that trains.
    assert {0, 5} <= {step for step, *_ in found} <= {0, 5, 10}
    assert found == records(expected)
    assert same(document["result"], adapter["result"])


def test_every_session_has_the_configuration_of_the_document(snippet: Snippet, tmp_path: Path) -> None:
    *_, expected = with_settings(snippet, tmp_path)
    *_, found = with_capture(snippet, tmp_path)
    assert found
    assert [comparable(one) for one in found] == [comparable(one) for one in expected]


def test_the_manual_configuration_is_the_documents_to_the_byte(tmp_path: Path) -> None:
    request = ascend_dump.DumpRequest(
        path="DUMPDIR", steps="0|5|10", mode="all", layers=["nodename1", "nodename2", "nodename3"]
    )
    found = apply(tf.ConfigProto(allow_soft_placement=True), request).SerializeToString(deterministic=True)
    text = SNIPPETS["session_manual"].settings.partition("npu_init import *")[2]
    names = run(text.replace("/home/HwHiAiUser/output", "DUMPDIR"), {"tf": tf, "RewriterConfig": RewriterConfig})
    names["custom_op"].parameter_map["dump_layer"].s = tf.compat.as_bytes("nodename1 nodename2 nodename3")
    assert found == names["session_config"].SerializeToString(deterministic=True)


def test_results_are_those_of_a_run_without_a_dump(snippet: Snippet, tmp_path: Path) -> None:
    with npu(tmp_path / "plain") as (names, _):
        run(snippet.without_dump, names)
        run(snippet.program, names)
    captured, _, _ = with_capture(snippet, tmp_path)
    assert same(names["result"], captured["result"])


def test_the_users_objects_are_as_before(snippet: Snippet, tmp_path: Path) -> None:
    with npu(tmp_path / "x") as (names, _):
        run(snippet.without_dump, names)
        before = names["session_config"].SerializeToString(deterministic=True)
        target = eval(snippet.target, names)
        with ascend_dump.capture(target, path=tmp_path / "adapter", steps=0, framework="tensorflow") as cap:
            pass
        assert names["session_config"].SerializeToString(deterministic=True) == before
        assert getattr(target, "_dump_config", None) is None
        assert len(cap.dump()) == 0
