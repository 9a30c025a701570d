"""The example of an own adapter: every command of its README, with the contract of adapters among them."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from interpreters import lay_out
from places import REPOSITORY
from readmes import Walked, walk_through

import ascend_dump
from ascend_dump.testing.contract import AdapterContract

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    site = lay_out(REPOSITORY / "examples" / "13_own_adapter", tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")])))
        return walk_through("13_own_adapter", tmp_path_factory.mktemp("walked"))


def test_the_adapter_passes_the_contract(walked: Walked) -> None:
    count = sum(name.startswith("test_") for name in dir(AdapterContract))
    assert f"{count} passed" in walked.printed


def test_the_selected_steps_are_recorded(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "dumps")
    assert dump.known_values("step") == {0, 1}
    operators = [record.op_type for record in dump if record.step == 0 and record.io == "output"]
    assert operators[:3] == ["dot_general", "broadcast_in_dim", "add"]
    assert f"{len(dump)} records" in walked.printed
    loss = float([record for record in dump if record.step == 0][-1].numpy())
    losses = re.findall(r"^step \d: loss (\S+)$", walked.printed, re.MULTILINE)
    assert losses == [f"{loss:.4f}"] * 3 + ["inf"] * 3


def test_parameters_of_the_equations_are_recorded(walked: Walked) -> None:
    record = ascend_dump.open(walked.place / "dumps")[0]
    assert record.arguments is not None
    assert json.loads(json.dumps(record.arguments.to_dict()))["args"]["preferred_element_type"] == {"dtype": "float32"}
    left, right, product = [record.numpy() for record in ascend_dump.open(walked.place / "dumps")[:3]]
    np.testing.assert_allclose(left @ right, product, rtol=1e-5, atol=1e-6)  # a sum may cancel


def test_the_operator_to_blame_is_found(walked: Walked) -> None:
    suspects = re.split(r"^(?=\d+\. )", walked.printed, flags=re.MULTILINE)
    first = next(text for text in suspects if re.match(r"1\. log log_\d+  \(first\)\n", text))
    assert "NaN or Inf of finite inputs" in " ".join(first.split())
