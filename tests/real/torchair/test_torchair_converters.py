"""Which operators the simulated NPU computes under the real torchair: measured again, and held against the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import converter_table
import pytest
from conftest import CONVERTERS, read_json

from ascend_dump.cli.shared.help_texts import topic_text


@pytest.fixture(scope="session")
def reports(run_program: Callable[[str, str], Path]) -> Mapping[str, Any]:
    """What was measured under each version."""
    return {
        version: read_json(run_program("measure_converters", version) / "converters.json") for version in CONVERTERS
    }


def test_the_page_says_what_is_measured(reports: Mapping[str, Any]) -> None:
    wanted = converter_table.page(reports)
    assert wanted == topic_text("converters").text, "write the page anew: see converter_table.py"


def test_every_core_operator_that_torchair_converts_is_simulated(reports: Mapping[str, Any]) -> None:
    """What is left is refused by torchair itself, or differs for a reason that the page gives."""
    equal = 0
    for version, report in reports.items():
        for name, measured in report.items():
            found = {result for result, _, _ in measured["outcomes"]}
            if measured["core"]:
                assert not found & {"not simulated", "fails"}, (version, name)
                equal += found == {"equal"}
            assert ("differs" in found) <= (name in converter_table.DIFFERENCES), (version, name)
    assert equal > 130 * len(CONVERTERS)


def test_no_refusal_is_one_of_the_simulated_device(reports: Mapping[str, Any]) -> None:
    for version, report in reports.items():
        for name, measured in report.items():
            for result, detail, _ in measured["outcomes"]:
                assert result != "refused" or "simulated" not in detail, (version, name, detail)
