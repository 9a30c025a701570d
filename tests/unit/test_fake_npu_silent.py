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
from ascend_dump.fakes.device.npu import NodeInfo, Npu, OperatorFailed
from ascend_dump.native.cann.statistics_csv import read_statistics

DATA = places.DATA / "cann"
CASES = [
    *json.loads((DATA / "silent_cases.json").read_text()),
    *json.loads((DATA / "silent_option_cases.json").read_text()),
]
#: What to compare a case with: `same_as` (the setting without its ignored part), `passes` (where that of the case
#: dumps nothing either), `set` (further keys), what to look for; or the `reason` why it cannot be shown.
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


def _facts(case, side):
    if side == "passes" and "pass_situation" in case:
        return case["pass_situation"]
    return case.get("situation", {})


def _fill(value, root):
    """Give a case its directories; nothing may be written outside of them."""
    text = json.dumps(value).replace("$DIR", str(root)).replace("/elsewhere", str(root / "elsewhere"))
    return json.loads(text)


def _arm(npu, setting, facts, extra, root):
    file = root.with_suffix(".json")
    if facts.get("acl_dump"):
        other = {"dump_path": str(root / "other"), "dump_mode": "input", "dump_list": [{}]}
        file.write_text(json.dumps({"dump": other}))
        assert npu.arm_acl(file) == 0
    if "ge_options" in facts:
        assert npu.arm_ge({**facts["ge_options"], "ge.exec.dumpPath": str(root / "other")}) == 0
    if "options" in setting:
        assert npu.arm_ge(setting["options"]) == 0
        return
    if "raw" in setting:
        file.write_text(setting["raw"])
    else:
        config = setting["config"]
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
        npu.run_op("Add", "add", arrays, arrays, captured="graph")
    if single:
        npu.run_op("Mul", "alone", arrays, arrays, kernel=single == "kernel")
    if exception:
        npu.fail("broken")
        with contextlib.suppress(OperatorFailed):
            npu.run_op("Div", "broken", arrays, arrays)


def _observe(setting, facts, root, more, *, single):
    root.mkdir()
    for name in ("a b", "here", "other", "elsewhere"):
        (root / name).mkdir()
    setting, facts = _fill(setting, root), _fill(facts, root)
    free = facts.get("free_bytes", 1 << 30)
    npu = Npu(cwd=root, environ=facts.get("env", {}), soc=facts.get("soc", "Ascend310P3"), disk=lambda path: free)
    _arm(npu, setting, facts, more.get("set"), root)
    asked = json.dumps([setting, facts])
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
    def call(case, side, *, setting=None, single=""):
        more = ON_DEVICE.get(case["id"], {})
        side_of_facts = "trips" if side == "same_as" else side
        given = setting or more.get(side) or case[side]
        return _observe(given, _facts(case, side_of_facts), tmp_path / side, more, single=single)

    return call


def _cases(*effects):
    chosen = [case for case in CASES if case["effect"] in effects and "reason" not in ON_DEVICE.get(case["id"], {})]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case["id"])


def test_every_case_is_shown_or_has_a_reason():
    shown = {"nothing", "no-model", "elsewhere", "ignored", "partly", "more"}
    known = {case["id"] for case in CASES}
    assert set(ON_DEVICE) <= known
    hidden = {name for name, more in ON_DEVICE.items() if "reason" in more}
    assert {case["id"] for case in CASES if case["effect"] not in shown} <= hidden
    assert hidden == {"container", "option-quant-value"}


@_cases("nothing")
def test_nothing_is_written(case, observe):
    assert observe(case, "trips").files == ()
    assert observe(case, "passes").files != ()


@_cases("no-model")
def test_no_model_is_dumped_while_single_kernels_may_be(case, observe):
    trips, passes = observe(case, "trips", single="kernel"), observe(case, "passes", single="kernel")
    assert {record[0] for record in trips.records} <= {None}
    assert "m" in {record[0] for record in passes.records}


@_cases("elsewhere")
def test_the_dump_is_not_where_it_was_wanted(case, observe):
    trips, passes = observe(case, "trips"), observe(case, "passes")
    assert passes.roots == {""}
    assert trips.roots
    assert "" not in trips.roots


@_cases("ignored")
def test_the_setting_makes_no_difference(case, observe):
    trips, passes = observe(case, "trips"), observe(case, "passes")
    assert trips.records
    if "same_as" in ON_DEVICE.get(case["id"], {}):
        assert trips.records == observe(case, "same_as").records
        assert trips.records != passes.records
    else:
        assert trips.records == passes.records


@_cases("partly")
def test_a_part_is_missing(case, observe):
    more = ON_DEVICE[case["id"]]
    trips, passes = observe(case, "trips"), observe(case, "passes")
    if "missing" in more:
        assert trips.files
        assert not any(more["missing"] in path for path in trips.files)
        assert any(more["present"] in path for path in passes.files)
        return
    assert trips.files
    assert all(path.endswith(".csv") for path in trips.files)
    assert not any(path.endswith(".csv") for path in passes.files)


def test_statistics_of_a_type_without_them_are_blank(tmp_path):
    case = next(case for case in CASES if case["id"] == "statistics-blank")
    seen = _observe(case["trips"], case["situation"], tmp_path / "run", {}, single="")
    rows = [row for path in seen.files for row in read_statistics(tmp_path / "run" / path)]
    assert {(row.position, row.failed) for row in rows} == {(0, False), (1, True)}


@_cases("more")
def test_more_is_written_than_asked_for(case, observe):
    trips, passes = observe(case, "trips", single="model"), observe(case, "passes", single="model")
    assert {record[0] for record in trips.records} >= {"m", "n"}
    if case["id"] == "models-too":
        assert None in {record[0] for record in trips.records}
        assert None not in {record[0] for record in passes.records}
    else:
        assert not any(path.endswith(".csv") for path in trips.files)
        assert all(path.endswith(".csv") for path in passes.files)
