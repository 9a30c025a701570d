"""A suite of a real framework that skips everything has shown nothing, so it fails."""

from __future__ import annotations

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter is not None and not reporter.stats.get("passed"):
        reporter.write_line("\nevery test of this suite was skipped: it counts as failed", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
