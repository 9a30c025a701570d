"""The program of torchair's document with each option, as tests/adapters has it, on the real torchair.

python document.py VERSION -> outcomes.json: test -> outcome
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import frontend
import pytest

TESTS = Path(__file__).parents[3] / "adapters" / "test_torchair_document.py"


class Outcomes:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid.partition("::")[2]] = f"{report.outcome} {report.longreprtext[-1500:]}".strip()


def main(version: str) -> None:
    os.environ["ASCEND_DUMP_TEST_TORCHAIR"] = "torchair_native"
    frontend.prepare()
    outcomes = Outcomes()
    # torchair and PyTorch warn of each other. What makes an older torchair of the fake has no place here.
    settings = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=ignore", "-k", "not older and not generates_no"]
    pytest.main([*settings, str(TESTS)], plugins=[outcomes])
    Path("outcomes.json").write_text(json.dumps(outcomes.found))


if __name__ == "__main__":
    main(sys.argv[1])
