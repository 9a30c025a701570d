"""Fakes appear in sys.modules for the length of a block, and never hide a real module unasked."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from types import MappingProxyType, ModuleType

import pytest

import ascend_dump.fakes as fakes
from ascend_dump import ConfigError

NPU = object()


@pytest.fixture
def registered(monkeypatch):
    """A fake of two modules, `nopu` and `nopu.rt`, that know their device."""

    def modules(npu):
        top, sub = ModuleType("nopu"), ModuleType("nopu.rt")
        top.__path__, top.device = [], npu
        return {"nopu": top, "nopu.rt": sub}

    maker = ModuleType("fake_of_nopu")
    maker.modules = modules
    monkeypatch.setitem(sys.modules, "fake_of_nopu", maker)
    monkeypatch.setattr(fakes, "FAKES", MappingProxyType({"nopu": "fake_of_nopu"}))


def test_a_fake_is_there_inside_the_block_and_gone_behind_it(registered):
    with fakes.install("nopu", npu=NPU) as npu:
        import nopu.rt

        assert npu is NPU
        assert nopu.device is NPU
        assert nopu.rt is sys.modules["nopu.rt"]
        assert importlib.util.find_spec("nopu") is not None
    assert [name for name in sys.modules if name.startswith("nopu")] == []


def test_everything_is_restored_after_an_exception(registered, monkeypatch):
    earlier = ModuleType("nopu.extra")
    monkeypatch.setitem(sys.modules, "nopu.extra", earlier)
    seen = []
    with contextlib.suppress(KeyError), fakes.install("nopu", npu=NPU):
        seen.append("nopu.extra" in sys.modules)
        sys.modules["nopu.late"] = ModuleType("nopu.late")
        raise KeyError("inside")
    assert seen == [False]
    assert [name for name in sys.modules if name.startswith("nopu")] == ["nopu.extra"]
    assert sys.modules["nopu.extra"] is earlier


def test_an_outer_installation_is_back_behind_an_inner_one(registered):
    with fakes.install("nopu", npu=NPU):
        outer = sys.modules["nopu"]
        with fakes.install("nopu", npu=NPU):
            assert sys.modules["nopu"] is not outer
        assert sys.modules["nopu"] is outer


def test_what_a_fake_changes_elsewhere_is_taken_back_while_it_is_still_there(registered):
    elsewhere, seen = ModuleType("elsewhere"), []

    @contextlib.contextmanager
    def patches(npu, modules):
        elsewhere.npu = modules["nopu"].device
        try:
            yield
        finally:
            seen.append("nopu" in sys.modules)
            del elsewhere.npu

    sys.modules["fake_of_nopu"].patches = patches
    with contextlib.suppress(KeyError), fakes.install("nopu", "nopu", npu=NPU):
        assert elsewhere.npu is NPU
        raise KeyError("inside")
    assert seen == [True]
    assert not hasattr(elsewhere, "npu")
    assert "nopu" not in sys.modules


def test_hooks_that_wait_for_the_import_run(registered):
    from wrapt import register_post_import_hook

    seen = []
    register_post_import_hook(lambda module: seen.append((module, module.device)), "nopu")
    with fakes.install("nopu", npu=NPU):
        assert seen == [(sys.modules["nopu"], NPU)]


def test_a_loaded_real_module_is_hidden_only_by_force(registered, monkeypatch):
    real = ModuleType("nopu")
    monkeypatch.setitem(sys.modules, "nopu", real)
    with pytest.raises(ConfigError, match="the real nopu is installed"), fakes.install("nopu", npu=NPU):
        pass
    with fakes.install("nopu", npu=NPU, force=True):
        assert sys.modules["nopu"] is not real
    assert sys.modules["nopu"] is real


def test_a_real_module_that_is_not_imported_yet_is_seen(registered, monkeypatch, tmp_path):
    (tmp_path / "nopu.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="the real nopu"), fakes.install("nopu", npu=NPU):
        pass
    assert "nopu" not in sys.modules


@pytest.mark.parametrize("names", [(), ("no_such_fake",)])
def test_wrong_names_are_told_with_the_known_ones(registered, names):
    with pytest.raises(ConfigError, match="known: nopu"), fakes.install(*names, npu=NPU):
        pass


def test_a_given_device_takes_no_arguments(registered):
    with pytest.raises(ConfigError, match="device_id"), fakes.install("nopu", npu=NPU, device_id=1):
        pass


@pytest.fixture
def filled(monkeypatch):
    """A fake whose modules are filled when they are imported; gives the list of those that were."""
    imported = []

    def fill(module):
        imported.append(module.__name__)
        module.value = len(imported)

    maker = ModuleType("fake_of_nopu")
    maker.modules = lambda npu: {"nopu": fill, "nopu.rt": fill}
    monkeypatch.setitem(sys.modules, "fake_of_nopu", maker)
    monkeypatch.setattr(fakes, "FAKES", MappingProxyType({"nopu": "fake_of_nopu"}))
    return imported


def test_a_module_may_be_filled_when_the_program_imports_it(filled):
    with fakes.install("nopu", npu=NPU):
        assert filled == []
        from nopu import rt

        assert filled == ["nopu", "nopu.rt"]
        assert rt.value == 2
        assert getattr(rt, fakes.MARK)
        with fakes.install("nopu", npu=NPU):
            assert "nopu.rt" not in sys.modules
    assert "nopu" not in sys.modules
    assert importlib.util.find_spec("nopu") is None


def test_hooks_that_wait_for_an_import_are_told_of_it(filled):
    wrapt = pytest.importorskip("wrapt")
    told = []
    wrapt.register_post_import_hook(lambda module: told.append(module.value), "nopu.rt")
    with fakes.install("nopu", npu=NPU):
        assert told == []
        import nopu.rt

        assert told == [2]
        assert nopu.rt.value == 2


def test_a_fake_of_a_part_leaves_the_package_around_it(monkeypatch):
    whole, part = ModuleType("wholepu"), ModuleType("wholepu.part")
    whole.__path__ = []
    maker = ModuleType("fake_of_part")
    maker.modules = lambda npu: {"wholepu.part": part}
    monkeypatch.setitem(sys.modules, "fake_of_part", maker)
    monkeypatch.setitem(sys.modules, "wholepu", whole)
    monkeypatch.setattr(fakes, "FAKES", MappingProxyType({"part": "fake_of_part"}))
    with fakes.install("part", npu=NPU):
        import wholepu.part

        assert sys.modules["wholepu"] is whole
        assert wholepu.part is part
    assert sys.modules["wholepu"] is whole
    assert "wholepu.part" not in sys.modules
    real = ModuleType("wholepu.part")
    monkeypatch.setitem(sys.modules, "wholepu.part", real)
    with pytest.raises(ConfigError, match=r"the real wholepu\.part is installed here"), fakes.install("part", npu=NPU):
        pass
    assert sys.modules["wholepu.part"] is real


def test_two_fakes_of_one_module_are_refused(registered, monkeypatch):
    monkeypatch.setattr(fakes, "FAKES", MappingProxyType({"nopu": "fake_of_nopu", "other": "fake_of_other"}))
    other = ModuleType("fake_of_other")
    other.modules = lambda npu: {"nopu.rt": ModuleType("nopu.rt")}
    monkeypatch.setitem(sys.modules, "fake_of_other", other)
    with pytest.raises(ConfigError, match="replace the module nopu"), fakes.install("nopu", "other", npu=NPU):
        pass


def test_a_process_may_end_inside_a_block():
    program = "from ascend_dump import fakes; block = fakes.install('mindspore'); block.__enter__(); import mindspore"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_device_of_the_latest_installation_is_found() -> None:
    with fakes.install("acl") as outer:
        assert fakes.installed_device() is outer
        with fakes.install("acl") as inner:
            assert fakes.installed_device() is inner
        assert fakes.installed_device() is outer
    with pytest.raises(ConfigError, match="no fakes are installed"):
        fakes.installed_device()
