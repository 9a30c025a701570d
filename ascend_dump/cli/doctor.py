"""`ascend-dump doctor`: report what works in this environment and what does not, with the reasons."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import click

from ascend_dump._version import __version__
from ascend_dump.adapter import adapters
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.versions import conflicts
from ascend_dump.cli.shared.writable_path import examine_path
from ascend_dump.errors import ConfigError
from ascend_dump.reading import registered_dialects
from ascend_dump.report.tables import size
from ascend_dump.startup.activation import STRICT, VARIABLE, requested, settings_of_waiting
from ascend_dump.startup.launching import SITE

__all__ = ["doctor"]

HOOK = "ascend_dump_startup.pth"

#: Distributions by their purpose. Their versions are looked up; none is imported.
_PACKAGES = {
    "needed": ("numpy", "ml-dtypes", "safetensors", "protobuf", "msgspec", "xxhash", "wrapt", "click"),
    "optional": ("numba", "polars"),
    "frameworks": ("torch", "torch-npu", "mindspore", "tensorflow"),
}
#: Flags of Python with which the start-up hook is tested. -E and -I ignore PYTHONPATH; with -S there is no module site,
#: so neither .pth files nor a sitecustomize are read.
_FLAGS = ((), ("-E",), ("-I",), ("-S",))
_PROBE = "import sys; sys.exit(0 if 'ascend_dump.startup.activation' in sys.modules else 9)"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def doctor(as_json: bool) -> int:
    """Show the state of this installation: adapters, both ways to use ASCEND_DUMP, packages, disk.

    Incompatible versions of packages are listed as conflicts. Exits with 4 if no adapter is usable. No framework is
    imported and nothing is written; a few Python processes are started to test the start-up hook.
    """
    findings: dict[str, Any] = {
        "version": __version__,
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "package": str(Path(__file__).parents[1]),
        },
        "packages": {kind: {name: _version(name) for name in names} for kind, names in _PACKAGES.items()},
        "conflicts": conflicts(["ascend-dump", *(name for names in _PACKAGES.values() for name in names)]),
        "cann": os.environ.get("ASCEND_HOME_PATH"),
        "adapters": [info._asdict() for info in adapters()],
        "dialects": [info._asdict() for info in registered_dialects()],
        "activation": _activation(),
        "path": _path(),
    }
    usable = any(info["usable"] for info in findings["adapters"])
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "doctor", {"ok": usable, **findings})
    else:
        for line in _lines(findings):
            click.echo(line)
    return Exit.OK if usable else Exit.UNAVAILABLE


def _version(distribution: str) -> Optional[str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _activation() -> dict[str, Any]:
    """Return ASCEND_DUMP, the installed hook, and the flags of Python with which each way of activation works."""
    wrong = None
    try:
        request, waiting = requested(), settings_of_waiting()
    except ConfigError as error:
        request, waiting, wrong = None, None, str(error)
    hook = next((Path(entry, HOOK) for entry in sys.path if Path(entry or ".", HOOK).is_file()), None)
    paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != str(SITE)]
    by_hook = _probe(paths)
    return {
        "variable": os.environ.get(VARIABLE),
        "error": wrong,
        "request": None if request is None else request.to_mapping(),
        "waits": None if waiting is None else waiting.to_mapping(),
        "strict": os.environ.get(STRICT),
        "hook": None if hook is None else str(hook),
        "hook_reaches": by_hook,
        "hook_problem": None if by_hook["python"] else _why_no_hook(hook),
        "run_reaches": _probe([str(SITE), *paths]),
    }


def _probe(paths: Sequence[str]) -> dict[str, bool]:
    """Start an interpreter with each set of flags. Return, by command, True if the interpreter ran the hook."""
    environment = {**os.environ, VARIABLE: "off", "PYTHONPATH": os.pathsep.join(paths)}
    started = {
        " ".join(("python", *flags)): subprocess.Popen(
            [sys.executable, *flags, "-c", _PROBE],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for flags in _FLAGS
    }
    return {name: process.wait() == 0 for name, process in started.items()}


def _why_no_hook(hook: Optional[Path]) -> str:
    import site

    if hook is None:
        return f"{HOOK} is not installed; the package is used from {Path(__file__).parents[2]}"
    directories = {os.path.realpath(entry) for entry in (*site.getsitepackages(), site.getusersitepackages())}
    if os.path.realpath(hook.parent) not in directories:
        return f"{hook.parent} is only on PYTHONPATH (pip install --target), where Python reads no .pth file"
    return f"{hook} is there, but Python did not process it"


def _path() -> dict[str, Any]:
    """Return the default path of a dump, and its state."""
    try:
        request = requested()
    except ConfigError:
        request = None
    path = Path("dumps" if request is None else request.path)
    try:
        target = examine_path(path)
    except OSError as error:
        return {"path": os.path.abspath(path), "writable": False, "free_bytes": None, "error": str(error)}
    return {"path": str(target.path), "writable": target.writable, "free_bytes": target.free, "error": None}


def _lines(findings: Mapping[str, Any]) -> list[str]:
    python, packages, target = findings["python"], findings["packages"], findings["path"]
    lines = [
        f"ascend-dump  {findings['version']}, {python['package']}",
        f"python       {python['version']}, {python['executable']}",
        *(f"{kind:<12} {_versions(packages[kind])}" for kind in packages),
        *_conflict_lines(findings["conflicts"]),
        f"CANN         {findings['cann'] or 'ASCEND_HOME_PATH is not set'}",
        "statistics   "
        + (
            "numba: one pass over memory"
            if packages["optional"]["numba"]
            else "numpy, slower; pip install 'ascend-dump[analyze]' brings numba"
        ),
        "",
        "Adapters",
    ]
    for info in findings["adapters"]:
        state = "usable" if info["usable"] else "NOT usable"
        origin = f" [{info['distribution']} {info['version']}]" if info["distribution"] else ""
        lines.append(f"  {info['name']:<12} {state}: {info['reason']}{origin}")
    if not findings["adapters"]:
        lines.append("  none is registered: install the package with pip, a copied source tree registers nothing")
    foreign = [
        f"{dialect['name']} [{dialect['distribution']} {dialect['version']}]"
        for dialect in findings["dialects"]
        if dialect["distribution"]
    ]
    if foreign:
        lines += ["", f"Dialects of other packages: {', '.join(foreign)}"]
    lines += ["", "Activation", *_activation_lines(findings["activation"]), ""]
    free = "" if target["free_bytes"] is None else f", {size(target['free_bytes'])} free"
    state = "writable" if target["writable"] else f"NOT writable{': ' + target['error'] if target['error'] else ''}"
    lines.append(f"Dump path    {target['path']}: {state}{free}")
    return lines


def _conflict_lines(lines: Optional[Sequence[str]]) -> list[str]:
    if lines is None:
        return ["conflicts    not looked for: that needs pip or the package packaging"]
    return [f"CONFLICT     {line}" for line in lines]


def _activation_lines(activation: Mapping[str, Any]) -> list[str]:
    if activation["error"] is not None:
        first, _, details = activation["error"].partition("\n")
        setting = "\n    ".join([f"{activation['variable']!r} is WRONG: {first}", *details.splitlines()])
    elif activation["variable"] is None:
        setting = "not set"
    elif activation["waits"] is not None:
        setting = f"{activation['variable']!r}: waits for `ascend-dump attach`"
    elif activation["request"] is None:
        setting = f"{activation['variable']!r}: off"
    else:
        setting = f"{activation['variable']!r}: on"
    hook = _reach_text(activation["hook_reaches"])
    if activation["hook_problem"]:
        hook = f"NOT active: {activation['hook_problem']}; use `ascend-dump run`"
    return [
        f"  {VARIABLE:<16} {setting}",
        f"  start-up hook    {hook}",
        f"  ascend-dump run  {_reach_text(activation['run_reaches'])}",
    ]


def _reach_text(reaches: Mapping[str, bool]) -> str:
    yes = [name for name, reached in reaches.items() if reached]
    no = [name for name, reached in reaches.items() if not reached]
    parts = [f"active in {', '.join(yes)}"] if yes else []
    return "; ".join([*parts, f"not in {', '.join(no)}"] if no else parts)


def _versions(versions: Mapping[str, Optional[str]]) -> str:
    return ", ".join(f"{name} {version or '-'}" for name, version in versions.items())
