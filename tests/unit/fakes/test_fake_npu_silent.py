"""Each setting that CANN takes without doing it has that effect on the simulated device, and the fixed one dumps."""

from __future__ import annotations

import contextlib
import json
import re
from typing import NamedTuple

import ml_dtypes
import numpy as np
import places
import pytest

import ascend_dump
from ascend_dump.fakes.device.npu import ApiCall, Kernel, NodeInfo, Npu, OperatorFailed
from ascend_dump.native.cann.config import SILENT, SILENT_OPTIONS
from ascend_dump.native.cann.statistics_csv import read_statistics

DATA = places.DATA / "cann"
RULES = {**SILENT, **SILENT_OPTIONS}
#: The effect of what each rule is about, and what to compare its case with: `same_as` (the setting without its
#: ignored part), `passes` (where that of the rule dumps nothing either), `set` (further keys), what to look for;
#: or the `reason` why it cannot be shown.
ON_DEVICE = json.loads((DATA / "silent_on_device.json").read_text())

OPERATORS = (
    NodeInfo("x", "Data"),
    NodeInfo("C", "Add"),
    NodeInfo("A", "Relu"),
    NodeInfo("conv", "Conv2D", original_names=("conv1", "relu1")),
    NodeInfo("add", "Add"),
    NodeInfo("a", "Add"),
    NodeInfo("b", "Mul"),
)
DTYPES = ("float32", "float32")
STEPS = (0, 1)


class Seen(NamedTuple):
    """records: model, step, operator and tensor of everything written. roots: where. files: the paths."""

    records: frozenset
    roots: frozenset
    files: tuple


def _fill(example, root):
    """Give a case its directories; nothing may be written outside of them."""
    filled = example.inside(root)
    text = json.dumps(dict(filled.facts)).replace("/elsewhere", str(root / "elsewhere"))
    return filled._replace(facts=json.loads(text))


def _arm(npu, example, extra, root):
    config, facts = example.config, example.facts
    file = root.with_suffix(".json")
    if facts.get("acl_dump"):
        other = {"dump_path": str(root / "other"), "dump_mode": "input", "dump_list": [{}]}
        file.write_text(json.dumps({"dump": other}))
        assert npu.arm_acl(file) == 0
    if "ge_options" in facts:
        assert npu.arm_ge({**facts["ge_options"], "ge.exec.dumpPath": str(root / "other")}) == 0
    if isinstance(config, str):
        file.write_text(config)
    elif not config or any(key.startswith("ge.") for key in config):
        assert npu.arm_ge(config) == 0
        return
    else:
        if extra:
            config["dump"].update(extra)
        file.write_text(json.dumps(config))
    assert npu.arm_acl(file) == 0, npu.errors


def _run(npu, facts, *, single, exception):
    arrays = [np.ones(3, getattr(ml_dtypes, name, name)) for name in facts.get("dtypes", DTYPES)]
    operators = OPERATORS
    if "operators" in facts:
        operators = [NodeInfo(**each)._replace(inputs=("x:0",)) for each in facts["operators"]]
    npu.overflow("add")
    for model in facts.get("models", ("m", "n", "resnet")):
        built = {"status_check": facts.get("status_check", True), "static_shape": facts.get("static_shape", True)}
        loaded = npu.load_model(model, om_name=f"{model}_om", ops=operators, **built)
        for step in STEPS:
            npu.begin_step(loaded, step if facts.get("step_counter", True) else None)
            for node in operators:
                if node.type != "Data" and not facts.get("captured"):
                    npu.run_op(node.type, node.name, arrays, arrays, model_id=loaded)
            npu.end_step(loaded)
    if facts.get("captured"):
        call = ApiCall("aclnnAdd", arrays, arrays, [Kernel("AddAiCore", arrays, arrays)])
        npu.replay_api(npu.capture_api(call), call)
    if single == "kernel":
        npu.run_api(ApiCall("aclnnMul", arrays, arrays, [Kernel("MulAiCore", arrays, arrays)]))
    elif single:
        npu.run_op("Mul", "alone", arrays, arrays)
    if exception:
        npu.fail("broken")
        with contextlib.suppress(OperatorFailed):
            npu.run_op("Div", "broken", arrays, arrays)


def _observe(example, root, more, *, single):
    root.mkdir()
    for name in ("a b", "here", "other", "elsewhere"):
        (root / name).mkdir()
    example = _fill(example, root)
    facts = example.facts
    free = facts.get("free_bytes", 1 << 30)
    npu = Npu(cwd=root, environ=facts.get("env", {}), soc=facts.get("soc", "Ascend310P3"), disk=lambda path: free)
    _arm(npu, example, more.get("set"), root)
    asked = json.dumps([example.config, facts])
    _run(npu, facts, single=single, exception=bool(re.search("exception|aic_err|COLLECT", asked)))
    files = tuple(str(path.relative_to(root)) for path in npu.files)
    if more.get("only") == "exception":
        files = tuple(path for path in files if "extra-info" in path)
    records = frozenset(
        (record.model, record.step, record.op_type, record.op_name, record.io, record.index, record.attrs.get("scene"))
        for record in (ascend_dump.open(root) if npu.files else ())
    )
    roots = frozenset(re.split(r"/?(?:\d{14}|extra-info)/", path)[0] for path in files)
    return Seen(records, roots, files)


@pytest.fixture
def observe(tmp_path):
    def call(name, side, *, single=""):
        more = ON_DEVICE[name]
        example = RULES[name].passes if side == "passes" else RULES[name].trips
        if side in more:
            example = example._replace(config=more[side])
        return _observe(example, tmp_path / side, more, single=single)

    return call


def _cases(*effects):
    chosen = [name for name, more in ON_DEVICE.items() if more["effect"] in effects and "reason" not in more]
    return pytest.mark.parametrize("name", chosen)


def test_every_case_is_shown_or_has_a_reason():
    shown = {"nothing", "no-model", "elsewhere", "ignored", "partly", "more"}
    assert list(ON_DEVICE) == list(RULES)
    hidden = {name for name, more in ON_DEVICE.items() if "reason" in more}
    assert {name for name, more in ON_DEVICE.items() if more["effect"] not in shown} <= hidden
    assert hidden == {"container", "option-quant-value"}


@_cases("nothing")
def test_nothing_is_written(name, observe):
    assert observe(name, "trips").files == ()
    assert observe(name, "passes").files != ()


@_cases("no-model")
def test_no_model_is_dumped_while_single_kernels_may_be(name, observe):
    trips, passes = observe(name, "trips", single="kernel"), observe(name, "passes", single="kernel")
    assert {record[0] for record in trips.records} <= {None}
    assert "m" in {record[0] for record in passes.records}


@_cases("elsewhere")
def test_the_dump_is_not_where_it_was_wanted(name, observe):
    trips, passes = observe(name, "trips"), observe(name, "passes")
    assert passes.roots == {""}
    assert trips.roots
    assert "" not in trips.roots


@_cases("ignored")
def test_the_setting_makes_no_difference(name, observe):
    trips, passes = observe(name, "trips"), observe(name, "passes")
    assert trips.records
    if "same_as" in ON_DEVICE[name]:
        assert trips.records == observe(name, "same_as").records
        assert trips.records != passes.records
    else:
        assert trips.records == passes.records


@_cases("partly")
def test_a_part_is_missing(name, observe):
    more = ON_DEVICE[name]
    trips, passes = observe(name, "trips"), observe(name, "passes")
    if "missing" in more:
        assert trips.files
        assert not any(more["missing"] in path for path in trips.files)
        assert any(more["present"] in path for path in passes.files)
        return
    assert trips.files
    assert all(path.endswith(".csv") for path in trips.files)
    assert not any(path.endswith(".csv") for path in passes.files)


def test_statistics_of_a_type_without_them_are_blank(tmp_path):
    seen = _observe(RULES["statistics-blank"].trips, tmp_path / "run", {}, single="")
    rows = [row for path in seen.files for row in read_statistics(tmp_path / "run" / path)]
    assert {(row.position, row.failed) for row in rows} == {(0, False), (1, True)}


@_cases("more")
def test_more_is_written_than_asked_for(name, observe):
    trips, passes = observe(name, "trips", single="model"), observe(name, "passes", single="model")
    assert {record[0] for record in trips.records} >= {"m", "n"}
    if name == "models-too":
        assert None in {record[0] for record in trips.records}
        assert None not in {record[0] for record in passes.records}
    elif name.endswith("every-step"):
        assert {record[1] for record in trips.records} > {record[1] for record in passes.records}
    else:
        assert not any(path.endswith(".csv") for path in trips.files)
        assert all(path.endswith(".csv") for path in passes.files)
