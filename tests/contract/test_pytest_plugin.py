"""The plugin that every pytest run of an environment loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.testing import pytest_plugin

pytest_plugins = ["pytester"]


def test_it_imports_only_pytest() -> None:
    code = "import sys, pytest; before = set(sys.modules); import ascend_dump.testing.pytest_plugin"
    code += "; print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    root = Path(ascend_dump.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "['ascend_dump']\n"


@pytest.fixture
def users(pytester: pytest.Pytester, third_party: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The tests of a user of the third-party adapter."""
    paths = [str(third_party), *sys.path]
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in paths if path))
    return pytester


def test_the_fixtures(users: pytest.Pytester) -> None:
    users.makepyfile(
        test_it="""
        import numpy as np
        import pytest
        import toyframe
        import ascend_dump

        def test_path(ascend_dump_path, tmp_path):
            assert list(ascend_dump_path.iterdir()) == []
            assert ascend_dump_path.parent == tmp_path

        def test_capture(ascend_dump_capture, ascend_dump_path):
            network = toyframe.Network(first=np.sqrt)
            with ascend_dump_capture(network, mode="output") as cap:
                network(np.arange(3.0))
            assert ascend_dump_path in cap.path.parents
            assert [record.op_name for record in cap.dump()] == ["first"]

        def test_it_is_strict(ascend_dump_capture):
            with pytest.raises(ascend_dump.CaptureError, match="wrote nothing"):
                with ascend_dump_capture(toyframe.Network(first=np.sqrt)):
                    pass

        left = []

        def test_left_open(ascend_dump_capture):
            network = toyframe.Network(first=np.sqrt)
            left.append(ascend_dump_capture(network).start())
            network(np.arange(3.0))

        def test_it_was_stopped():
            assert not left[0].active

        def test_own_path(ascend_dump_capture, tmp_path):
            assert ascend_dump_capture(toyframe.Network(), path=tmp_path / "x").request.path == tmp_path / "x"
        """
    )
    users.runpytest_subprocess(*plugin_option()).assert_outcomes(passed=6)


def test_fakes_stay_until_the_test_ends(users: pytest.Pytester) -> None:
    users.makepyfile(
        test_it="""
        import sys

        def test_fakes(ascend_dump_fakes):
            npu = ascend_dump_fakes("acl", device_id=3)
            import acl
            assert acl.init() == 0
            assert acl.rt.set_device(3) == 0
            assert npu.device_id == 3

        def test_they_are_gone():
            assert "acl" not in sys.modules
        """
    )
    users.runpytest_subprocess(*plugin_option()).assert_outcomes(passed=2)


def test_asserts_of_the_contract_explain_themselves(users: pytest.Pytester) -> None:
    users.makepyfile(
        test_it="""
        import toyframe
        from ascend_dump.testing.contract import AdapterContract

        class TestIt(AdapterContract):
            name = "other"
        """
    )
    result = users.runpytest_subprocess(*plugin_option(), "-k", "registered")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*registered are*'toy'*", "*assert 'other' in {*"])


def plugin_option() -> list[str]:
    """Load it by name where the package is used without being installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("ascend-dump")
    except PackageNotFoundError:
        return ["-p", pytest_plugin.__name__]
    return []
