"""Fakes of hardware and frameworks, for this project's tests and for users' tests.

    with ascend_dump.fakes.install("acl") as npu:      # one simulated device for all fakes of the call
        import acl                                     # the fake, inside the block
        npu.overflow("Add_1")

A fake is a module of this package that is listed in `FAKES`. It has the function `modules(npu) -> Mapping[str,
ModuleType]`, which is called in each installation, and returns modules for `sys.modules` that use the device `npu`. In
place of a module, `modules` may return a function `fill(module)`, which is called when the program imports that module.
The optional function `patches(npu, modules) -> ContextManager` makes other changes, such as attributes of a real
framework. Its context is entered after the modules are installed, and left before they are removed.
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

#: Name of a fake -> the module that defines it.
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
#: Devices of the active installations, newest last.
_devices: list[Npu] = []


def installed_device() -> Npu:
    """Return the device of the newest installation. Raises ConfigError if no fakes are installed.

    >>> with install("acl", soc="Ascend310P3"):
    ...     installed_device().soc
    'Ascend310P3'
    """
    from ascend_dump import ConfigError

    if not _devices:
        raise ConfigError(
            "no fakes are installed, so there is no simulated device",
            hint="call installed_device() inside `with ascend_dump.fakes.install(...)`",
        )
    return _devices[-1]


@contextlib.contextmanager
def install(*names: str, force: bool = False, npu: Optional[Npu] = None, **device: Any) -> Iterator[Npu]:
    """Install fakes in `sys.modules` for the duration of a `with` block, and yield their device.

    names: keys of `FAKES`. npu: the device to use; by default a new `Npu(**device)`.
    At the end the modules of the fakes and their submodules are removed, and earlier modules of these names are
    restored. Raises ConfigError for an unknown name, and for two fakes of the same module. Unless `force` is set, it
    also raises ConfigError if a real module of the same name is loaded or can be imported.
    """
    from importlib import import_module

    from ascend_dump import ConfigError
    from ascend_dump.fakes._importing import Importer

    unknown = [name for name in names if name not in FAKES]
    if unknown or not names:
        problem = f"there is no fake {unknown[0]!r}" if unknown else "install() needs the name of a fake"
        raise ConfigError(problem, hint=f"known: {', '.join(FAKES)}")
    if npu is not None and device:
        raise ConfigError(
            f"install(npu=…) does not take {', '.join(device)}: the device exists already",
            hint="pass the arguments to Npu(...)",
        )
    target_device = _make_device(device) if npu is None else npu
    fakes = [import_module(FAKES[name]) for name in dict.fromkeys(names)]
    modules: dict[str, Union[ModuleType, Fill]] = {}
    for fake in fakes:
        fake_modules = fake.modules(target_device)
        # Two fakes may return the same module object. That is no conflict.
        conflicts = {name for name in modules.keys() & fake_modules.keys() if modules[name] is not fake_modules[name]}
        if conflicts:
            raise ConfigError(
                f"two of the fakes {', '.join(names)} replace the module {min(conflicts)}",
                hint="install only one of the two",
            )
        modules.update(fake_modules)
    roots = {name for name in modules if not any(parent in modules for parent in _parents(name))}
    for root in sorted(roots):
        if not force and _is_real(root):
            raise ConfigError(
                f"the real {root} is installed here, and the fake would hide it",
                hint=f"use an environment without {root}, or install(..., force=True)",
            )
    importer = Importer({name: fill for name, fill in modules.items() if not isinstance(fill, ModuleType)})
    replaced = {name: sys.modules[name] for name in _modules_below(roots)}
    _devices.append(target_device)
    try:
        _forget(roots)
        for name, module in modules.items():
            if isinstance(module, ModuleType):
                _install(name, module)
        importer.insert()
        with contextlib.ExitStack() as patched:
            for fake in fakes:
                if hasattr(fake, "patches"):
                    patched.enter_context(fake.patches(target_device, modules))
            _run_import_hooks(modules)
            yield target_device
    finally:
        _devices.remove(target_device)
        # If the process ends inside the block, Python has already cleared `sys.modules`.
        if not sys.is_finalizing():
            importer.remove()
            _forget(roots)
            sys.modules.update(replaced)


def _make_device(arguments: dict[str, Any]) -> Npu:
    from ascend_dump.fakes.device.npu import Npu

    return Npu(**arguments)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _modules_below(roots: set[str]) -> list[str]:
    """Return the names of loaded modules that are in `roots`, or are submodules of those."""
    below = tuple(f"{root}." for root in roots)
    # Copy the names first: a thread of the program may be importing.
    return [name for name in list(sys.modules) if name in roots or name.startswith(below)]


def _is_real(root: str) -> bool:
    """Return True if a module of this name that is no fake is loaded or can be imported."""
    from importlib.util import find_spec

    from ascend_dump.fakes._importing import Importer

    loaded = sys.modules.get(root)
    if loaded is not None:
        return not getattr(loaded, MARK, False)
    # None in sys.modules blocks the import. find_spec would import the parent package of a submodule.
    spec = None if root in sys.modules or "." in root else find_spec(root)
    # A directory of this name in the import path is a namespace package. It has no file, and is not a framework.
    return spec is not None and spec.origin is not None and not isinstance(spec.loader, Importer)


def _install(name: str, module: ModuleType) -> None:
    from importlib.machinery import ModuleSpec

    setattr(module, MARK, True)
    if module.__spec__ is None:
        # find_spec raises ValueError for a loaded module without a specification.
        module.__spec__ = ModuleSpec(name, None, is_package=hasattr(module, "__path__"))
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def _run_import_hooks(modules: Mapping[str, object]) -> None:
    """Run the import hooks that were registered with wrapt.

    wrapt runs them when a module is imported, but these modules were added to `sys.modules` directly.
    """
    wrapt: Any = sys.modules.get("wrapt")
    for module in modules.values():
        if wrapt is not None and isinstance(module, ModuleType):
            wrapt.notify_module_loaded(module)


def _forget(roots: set[str]) -> None:
    for name in _modules_below(roots):
        del sys.modules[name]
