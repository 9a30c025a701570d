"""What stands in for hardware and what proves adapters, for this project's tests and for users'.

    with ascend_dump.fakes.install("acl") as npu:      # one simulated device behind every fake named
        import acl                                     # the fake, for as long as the block lasts
        npu.overflow("Add_1")

A fake is a module of this package with the function `modules(npu) -> Mapping[str, ModuleType]`: the modules to
put into `sys.modules`, made anew for each installation and bound to that device. `FAKES` names them. What it changes
elsewhere, such as attributes of a real framework, it does in a second function that it may have,
`patches(npu, modules) -> ContextManager`: entered when the modules are in place, left before they go.
In place of a module it may give a function `fill(module)`, which is called when the program imports that module.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.fakes._importing import MARK

if TYPE_CHECKING:
    from ascend_dump.fakes._importing import Fill
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["FAKES", "MARK", "install", "installed_device"]

#: What can be installed -> the module of the fake.
FAKES: Mapping[str, str] = MappingProxyType(
    {
        "acl": "ascend_dump.fakes.acl.module",
        "mindspore": "ascend_dump.fakes.mindspore.module",
        "npu_bridge": "ascend_dump.fakes.npu_bridge.module",
        "npu_device": "ascend_dump.fakes.npu_device.module",
        "tensorflow": "ascend_dump.fakes.tensorflow.module",
        "torch_npu": "ascend_dump.fakes.torch_npu.module",
        "torchair": "ascend_dump.fakes.torchair.module",
        "torchair_native": "ascend_dump.fakes.torchair.native_module",
    }
)
#: Of the installations that last, the latest one last.
_devices: list[Npu] = []


def installed_device() -> Npu:
    """The device behind the fakes that were installed last. Raises ConfigError where none are.

    >>> with install("acl", soc="Ascend310P3"):
    ...     installed_device().soc
    'Ascend310P3'
    """
    from ascend_dump import ConfigError

    if not _devices:
        raise ConfigError("no fakes are installed", hint="ask inside `with ascend_dump.fakes.install(...)`")
    return _devices[-1]


@contextlib.contextmanager
def install(*names: str, force: bool = False, npu: Optional[Npu] = None, **device: Any) -> Iterator[Npu]:
    """Put fakes into `sys.modules` for the length of a `with` block, and yield the device behind them.

    names: of `FAKES`. npu: the device to use; by default a new one, made with the arguments `device`.
    Whatever the block imports below the fakes' names is forgotten at its end, and what was there before is back.
    Raises ConfigError for an unknown name, for two fakes of the same module, and where a real module of that name is
    loaded or could be imported, unless `force` is set.
    """
    from importlib import import_module

    from ascend_dump import ConfigError
    from ascend_dump.fakes._importing import Importer

    unknown = [name for name in names if name not in FAKES]
    if unknown or not names:
        what = f"there is no fake {unknown[0]!r}" if unknown else "install() needs the name of a fake"
        raise ConfigError(what, hint=f"known: {', '.join(FAKES)}")
    if npu is not None and device:
        raise ConfigError(
            f"install(npu=…) does not take {', '.join(device)}: the device exists already",
            hint="give the arguments to Npu(...)",
        )
    used = _make_device(device) if npu is None else npu
    makers = [import_module(FAKES[name]) for name in dict.fromkeys(names)]
    made: dict[str, Union[ModuleType, Fill]] = {}
    for maker in makers:
        more = maker.modules(used)
        # Fakes may share a module.
        twice = {name for name in made.keys() & more.keys() if made[name] is not more[name]}
        if twice:
            raise ConfigError(f"two of {', '.join(names)} stand in for {min(twice)}", hint="install one of them")
        made.update(more)
    roots = {name for name in made if not any(parent in made for parent in _parents(name))}
    for root in sorted(roots):
        if not force and _is_real(root):
            raise ConfigError(
                f"the real {root} is installed here, the fake would hide it",
                hint="run where it is not installed, or use install(..., force=True)",
            )
    importer = Importer({name: fill for name, fill in made.items() if not isinstance(fill, ModuleType)})
    before = {name: sys.modules[name] for name in _modules_below(roots)}
    _devices.append(used)
    try:
        _forget(roots)
        for name, module in made.items():
            if isinstance(module, ModuleType):
                _place(name, module)
        importer.insert()
        with contextlib.ExitStack() as patched:
            for maker in makers:
                if hasattr(maker, "patches"):
                    patched.enter_context(maker.patches(used, made))
            _tell_import_hooks(made)
            yield used
    finally:
        _devices.remove(used)
        # A process that ends inside the block closes it when Python has taken its own lists of modules down.
        if not sys.is_finalizing():
            importer.remove()
            _forget(roots)
            sys.modules.update(before)


def _make_device(arguments: dict[str, Any]) -> Npu:
    from ascend_dump.fakes.device.npu import Npu

    return Npu(**arguments)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _modules_below(roots: set[str]) -> list[str]:
    """The loaded modules of these names and below them; there are thousands to look through."""
    below = tuple(f"{root}." for root in roots)
    # A list first: a thread of the program may be importing.
    return [name for name in list(sys.modules) if name in roots or name.startswith(below)]


def _is_real(root: str) -> bool:
    from importlib.util import find_spec

    from ascend_dump.fakes._importing import Importer

    loaded = sys.modules.get(root)
    if loaded is not None:
        return not getattr(loaded, MARK, False)
    # None in sys.modules blocks the import. The part of a package cannot be looked for without importing the package.
    spec = None if root in sys.modules or "." in root else find_spec(root)
    # A directory of that name in the import path is no framework; as a package it has no file of its own.
    return spec is not None and spec.origin is not None and not isinstance(spec.loader, Importer)


def _place(name: str, module: ModuleType) -> None:
    from importlib.machinery import ModuleSpec

    setattr(module, MARK, True)
    if module.__spec__ is None:
        # find_spec raises for a loaded module without a specification.
        module.__spec__ = ModuleSpec(name, None, is_package=hasattr(module, "__path__"))
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def _tell_import_hooks(made: Mapping[str, object]) -> None:
    """Let hooks that wait for an import run: no finder finds what is put into `sys.modules`."""
    wrapt: Any = sys.modules.get("wrapt")
    for module in made.values():
        if wrapt is not None and isinstance(module, ModuleType):
            wrapt.notify_module_loaded(module)


def _forget(roots: set[str]) -> None:
    for name in _modules_below(roots):
        del sys.modules[name]
