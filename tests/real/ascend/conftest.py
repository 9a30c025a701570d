"""The contracts of `device_contracts` on a real device: `pytest --ascend-device=0 tests/real/ascend`.

Each test runs in a process forked for it: what a framework on a device takes once in a process would decide for all
tests behind it. So nothing here may use the device before the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Optional

import pytest
from device_contracts import Backend

from ascend_dump import fakes

#: In place of a device: the fakes, by which the tests of this suite try it.
SIMULATED = "simulated"


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "run the contracts of adapters on this Ascend device; `simulated`: on the fakes, to try the suite"
    parser.addoption("--ascend-device", metavar="N", default=None, help=help_)


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--ascend-device")
    if device is None or device == SIMULATED:
        return
    if not device.isdecimal():
        raise pytest.UsageError(f"--ascend-device={device}: expected the number of a device")
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = device


def pytest_collection_finish(session: pytest.Session) -> None:
    """Do once what takes each child a second: what is imported before a graph is made. It does not use the device."""
    device = session.config.getoption("--ascend-device")
    if device is not None and find_spec("torch") is not None and not session.config.option.collectonly:
        torch: Any = import_module("torch")
        torch.compile(torch.nn.Linear(1, 1), backend="aot_eager")(torch.ones(1, 1)).sum().backward()
        torch._dynamo.reset()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """The real frameworks on the device that the command line names."""
    device: Optional[str] = request.config.getoption("--ascend-device")
    if device is None:
        pytest.skip("no device is named: give --ascend-device=0 on a machine with an Ascend NPU")
    if device == SIMULATED:
        return lambda *names: fakes.install(*names, environ={})
    return _on_device


@contextlib.contextmanager
def _on_device(name: str) -> Iterator[None]:
    """Skips, with the reason, where the framework or its device is not there."""
    try:
        # torch_npu brings torchair with it.
        module: Any = import_module("torch_npu" if name == "torchair" else name)
        why = _lacks_device(name, module)
    except (ImportError, OSError) as error:
        why = f"{name} cannot be imported: {error}"
    if why:
        pytest.skip(why)
    yield


def _lacks_device(name: str, module: Any) -> str:
    if name in ("torch_npu", "torchair"):
        return "" if module.npu.is_available() else "torch_npu sees no device"
    if name == "mindspore":
        try:
            module.set_device("Ascend")
        except (RuntimeError, ValueError) as error:
            return f"MindSpore finds no device: {str(error).partition(chr(10))[0]}"
    if name == "acl":
        count, code = module.rt.get_device_count()
        return "" if code == 0 and count else f"acl finds no device: {count}, code {code}"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: Optional[pytest.Item]) -> bool:
    """Run the test in a child, which sends its reports back as JSON."""
    hook = item.config.hook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports_of_child(item):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports_of_child(item: pytest.Item) -> list[Any]:
    from _pytest.runner import runtestprotocol

    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        code = 1
        try:
            found = runtestprotocol(item, log=False)
            dumped = [item.config.hook.pytest_report_to_serializable(config=item.config, report=one) for one in found]
            with os.fdopen(writable, "w") as out:
                json.dump(dumped, out, default=str)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable) as sent:
        text = sent.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not text:
        return [_crashed(item, status)]
    reports = json.loads(text)
    for one in reports:
        if isinstance(one["longrepr"], list):  # of a skip: a tuple, for which JSON has no type
            one["longrepr"] = tuple(one["longrepr"])
    return [item.config.hook.pytest_report_from_serializable(config=item.config, data=one) for one in reports]


def _crashed(item: pytest.Item, status: int) -> pytest.TestReport:
    how = f"by signal {-status}" if status < 0 else f"with code {status}"
    text = f"the process of the test ended {how} and left no report"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
