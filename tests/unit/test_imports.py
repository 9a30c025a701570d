"""The cost of imports, and the order of packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Union

import pytest
from places import DATA

import ascend_dump
import ascend_dump.adapter

ROOT = Path(ascend_dump.__file__).parents[1]
CORE = ROOT / "ascend_dump"
ADAPTERS = ROOT / "adapters"

FRAMEWORKS = {"torch", "torch_npu", "torchair", "mindspore", "tensorflow", "npu_bridge", "npu_device", "acl"}

#: The floors of the house, ground floor first. A part imports parts of lower floors only.
FLOORS: list[set[str]] = [
    {"_version", "errors"},
    {"common", "steps"},
    {"storage"},
    {"statistics"},
    {"request"},
    {"dump_format"},
    {"writing"},
    {"native"},
    {"adapter"},
    {"reading"},
    {"converting", "report"},
    {"analysis"},
    {"capturing"},
    {"attach"},
    {"startup"},
    {"triage_runs", "selftest"},
    {"cli"},
    {"__main__"},
    {"fakes"},
    {"testing"},  # above the fakes, because its pytest plugin installs them
    {"__init__"},
]
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}

#: The rooms of `ascend_dump.analysis` in the same order: each imports rooms before it only.
ROOMS = (
    *("numerics", "operators", "pairing", "alignment", "judging", "replay", "explaining", "ranks", "weights"),
    *("trends", "quantised", "compare", "overflow", "overwritten_outputs", "suspects", "_triage_page", "triage"),
)


class Import(NamedTuple):
    module: str
    lazy: bool
    line: int


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, package: str, typing: bool = False) -> tuple[Import, ...]:
    """Every import that runs. typing: also those under `if TYPE_CHECKING`, which do not."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if not typing and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for other in child.orelse:
                    yield from walk(other, lazy)
                continue
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    up = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*up, base]).rstrip(".")
                yield Import(base, lazy, child.lineno)
                # `from package import module` imports the module too.
                yield from (Import(f"{base}.{alias.name}", lazy, child.lineno) for alias in child.names)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, lazy or inside)

    return tuple(walk(tree_of(path), False))


def part_of(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def core_files() -> list[Path]:
    """All but the programs of the demo and of the self-test, which are users' programs in processes of their own."""
    programs = {CORE / "cli" / "demo_program", CORE / "selftest" / "programs"}
    return sorted(path for path in CORE.rglob("*.py") if path.parent not in programs)


def core_imports(typing: bool = False) -> Iterator[tuple[str, str, Import]]:
    """(file, part, import of another part of the core)"""
    for path in core_files():
        relative = path.relative_to(ROOT)
        package = ".".join(relative.parent.parts)
        own = relative.parts[1] if len(relative.parts) > 2 else relative.stem
        for found in imports(path, package, typing):
            if found.module == "ascend_dump" or found.module.startswith("ascend_dump."):
                part = part_of(found.module)
                # A name taken from the package itself is no part of it.
                if part != own and (part in FLOOR or (CORE / part).is_dir() or (CORE / f"{part}.py").is_file()):
                    yield f"{relative}:{found.line}", own, found


def test_every_part_of_the_core_has_a_floor() -> None:
    parts = {path.stem for path in CORE.glob("*.py")} | {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert parts <= FLOOR.keys(), "say in FLOORS where a new part of the core stands"


@pytest.mark.parametrize("typing", [False, True])
def test_imports_go_down(typing: bool) -> None:
    wrong = []
    for where, own, found in core_imports(typing):
        part = part_of(found.module)
        if part != "__init__" and FLOOR[part] >= FLOOR[own]:
            wrong.append(f"{where}: {own} imports {found.module}")
    assert not wrong


def test_rooms_of_analysis_import_rooms_before_them() -> None:
    analysis = CORE / "analysis"
    rooms = {path.stem for path in analysis.iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert rooms == set(ROOMS), "say in ROOMS where a new room of analysis stands"
    wrong = []
    for path in sorted(analysis.rglob("*.py")):
        relative = path.relative_to(ROOT)
        own = relative.parts[2] if len(relative.parts) > 3 else relative.stem
        for found in every_import(path):
            names = found.module.split(".")
            room = names[2] if names[:2] == ["ascend_dump", "analysis"] and len(names) > 2 else own
            if room != own and ROOMS.index(room) > ROOMS.index(own):
                wrong.append(f"{relative}:{found.line}: {own} imports {found.module}")
    assert wrong == []


def test_a_private_module_is_imported_by_its_own_package_only() -> None:
    """Imports for type checkers count too."""
    wrong = []
    for path in [*core_files(), *ADAPTERS.rglob("*.py")]:
        module = module_of(path) if path.is_relative_to(CORE) else ".".join(path.relative_to(ADAPTERS).parts)
        for found in every_import(path):
            names = found.module.split(".")
            private = [number for number, name in enumerate(names) if re.match(r"_[a-z]", name)]
            if not private or not names[0].startswith("ascend_dump"):
                continue
            owner = names[: private[0]]
            # A private name of a module is no module.
            base = ROOT if owner[0] == "ascend_dump" else ADAPTERS
            target = base.joinpath(*names[: private[0] + 1])
            is_module = target.with_suffix(".py").is_file() or target.is_dir()
            if is_module and module.split(".")[: len(owner)] != owner:
                wrong.append(f"{path.relative_to(ROOT)}:{found.line}: {found.module}")
    assert wrong == []


def every_import(path: Path) -> Iterator[Import]:
    """Yield what a file imports, under `if TYPE_CHECKING` too; names that it takes from a package as modules."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            base = getattr(node, "module", None)
            yield from (Import(name, False, node.lineno) for name in ([base] if base else []) + names_imported(node))


#: Folders that have more modules than this are hard to take in.
MOST_MODULES = 25


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in [*core_files(), *ADAPTERS.rglob("*.py")]}
    counts = {folder.name: len([*folder.glob("*.py")]) - 1 for folder in folders}  # without __init__.py
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}


def test_no_modules_import_each_other() -> None:
    """Imports inside functions and those for types only count too."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in core_files()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom) and node.module)
        graph[name] = {
            full if (full := f"{node.module}.{alias.name}") in modules else str(node.module)
            for node in named
            for alias in node.names
        } & (modules.keys() - {name})
    assert list(circles_of(graph)) == []
    assert list(circles_of({"a": {"b"}, "b": {"a"}})) == [{"a", "b"}] * 2  # what it looks for is found


def circles_of(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """The groups of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set[str](), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    for name, others in reached.items():
        if name in others:
            yield {other for other in others if name in reached[other]}


#: Classes of fakes that have the names of those of the frameworks that they stand for.
NAMES_OF_FRAMEWORKS = {
    *("Dataset", "Dense", "Graph", "Model", "NpuBaseConfig", "OptionValue", "Parameter", "Session", "Tensor"),
}


def test_a_class_name_is_one_class() -> None:
    where: dict[str, set[str]] = {}
    for path in [*CORE.rglob("*.py"), *ADAPTERS.rglob("*.py")]:
        is_fake = "fakes" in path.parts
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef) or (is_fake and node.name in NAMES_OF_FRAMEWORKS):
                continue
            if not (is_fake and node.name.startswith("_")):
                where.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert {name: sorted(files) for name, files in where.items() if len(files) > 1} == {}


def test_the_core_knows_neither_adapters_nor_fakes() -> None:
    wrong = []
    for path in core_files():
        relative = path.relative_to(ROOT)
        for found in imports(path, ".".join(relative.parent.parts)):
            fake = found.module.startswith("ascend_dump.fakes") and not {"fakes", "testing"} & {*relative.parts}
            if fake or found.module.startswith("ascend_dump_"):
                wrong.append(f"{relative}:{found.line}: {found.module}")
    assert not wrong


def test_the_core_imports_no_framework() -> None:
    wrong = []
    late = {path for path in core_files() if is_loaded_late(path)}
    for path in core_files():
        relative = path.relative_to(ROOT)
        if path in late or relative.parts[1:3] == ("adapter", "pytorch"):
            continue  # what adapters for PyTorch share; nothing else imports it
        # Once asked to, a fake may use the framework that it stands in for, and a replay runs PyTorch's operators.
        late_users = "fakes" in relative.parts or relative.parts[1:3] == ("analysis", "replay")
        for found in imports(path, ".".join(relative.parent.parts)):
            if found.module.split(".")[0] in FRAMEWORKS and not (late_users and found.lazy):
                wrong.append(f"{relative}:{found.line}: {found.module}")
            if not found.lazy and any(found.module == module_of(other) for other in late):
                wrong.append(f"{relative}:{found.line}: {found.module} loads a framework")
    assert not wrong


def is_loaded_late(path: Path) -> bool:
    """A private part of a fake that works on a framework: the fake loads it when it is asked for its modules."""
    return (
        "fakes" in path.parts
        and path.name.startswith("_")
        and path.name != "__init__.py"
        and any(
            found.module.split(".")[0] in FRAMEWORKS and not found.lazy for found in imports(path, "ascend_dump.fakes")
        )
    )


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def adapter_packages() -> list[Path]:
    return sorted(path.parent for path in ADAPTERS.glob("*/__init__.py"))


@pytest.mark.parametrize("package", adapter_packages(), ids=lambda path: path.name)
def test_an_adapter_imports_no_framework_when_it_is_loaded(package: Path) -> None:
    """Entry points load every adapter in any process, so what its package pulls in counts too."""
    todo, seen, wrong = [package / "__init__.py"], set(), []
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for found in imports(path, package.name):
            if found.lazy:
                continue
            names = found.module.split(".")
            if names[0] in FRAMEWORKS:
                wrong.append(f"{path.relative_to(ROOT)}:{found.line}: {found.module}")
            if names[0] == package.name and len(names) > 1:
                todo += [one for one in (package / f"{names[1]}.py",) if one.is_file()]
    assert not wrong


@pytest.mark.parametrize("package", adapter_packages(), ids=lambda path: path.name)
def test_no_adapter_imports_another(package: Path) -> None:
    others = {path.name for path in adapter_packages()} - {package.name}
    found = {one.module.split(".")[0] for path in package.rglob("*.py") for one in imports(path, package.name)}
    assert not found & others


@pytest.mark.parametrize(
    "package", [*adapter_packages(), CORE / "fakes", *sorted(DATA.glob("third_party_*"))], ids=lambda path: path.name
)
def test_whoever_adds_a_framework_needs_public_names_only(package: Path) -> None:
    """Everything for authors is in `ascend_dump` and `ascend_dump.adapter`; imports for type checkers count too."""
    own = "ascend_dump.fakes." if package == CORE / "fakes" else package.name
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in package.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in names_imported(node)
        if name.startswith("ascend_dump.") and "._" in name and not name.startswith(own)
    ]
    assert private == []


INTERFACE = (CORE / "pages" / "topics" / "interface.md").read_text(encoding="utf-8")
#: The modules in the table of the page, and the packages in its list: only adapters and examples of this distribution
#: import these.
PUBLIC_MODULES = re.findall(r"^\| `(\S+)` \|", INTERFACE, re.MULTILINE)
SHARED_PACKAGES = tuple(
    name
    for line in re.findall(r"^- (`.*?):", INTERFACE, re.MULTILINE)
    for name in re.findall(r"`(ascend_dump\S*)`", line)
)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_a_public_module_lists_its_names(name: str) -> None:
    module = import_module(name)
    assert module.__all__
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


@pytest.mark.parametrize("name", SHARED_PACKAGES)
def test_a_shared_package_exists(name: str) -> None:
    assert import_module(name).__doc__


#: Examples that import shared packages, which the page names.
EXAMPLES_OF_DEVICES = ("03_acl_offline",)


@pytest.mark.parametrize(
    "package",
    [*adapter_packages(), *sorted((ROOT / "examples").glob("*/")), *sorted(DATA.glob("third_party_*"))],
    ids=lambda path: path.name,
)
def test_extensions_and_examples_import_listed_modules_only(package: Path) -> None:
    """Imports for type checkers count too."""
    shared = SHARED_PACKAGES if package.parent == ADAPTERS or package.name in EXAMPLES_OF_DEVICES else ()
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {module}"
        for path in package.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for module in modules_imported(node)
        if module not in PUBLIC_MODULES and not f"{module}.".startswith(tuple(f"{name}." for name in shared))
    ]
    assert wrong == [], "list the module in ascend_dump/pages/topics/interface.md, or import a public name"


def modules_imported(node: Union[ast.Import, ast.ImportFrom]) -> list[str]:
    """Return the modules of ascend_dump that a statement imports, those that it takes from a package too."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        files = [ROOT.joinpath(*base.split("."), name) for name in names]
        modules = [f"{base}.{path.name}" for path in files if path.is_dir() or path.with_suffix(".py").is_file()]
        names = modules if len(modules) == len(names) else [base, *modules]
    return [name for name in names if name.split(".")[0] == "ascend_dump"]


def test_a_test_that_needs_private_modules_says_why() -> None:
    """In a comment before the first such import of a block; most tests use what users use."""
    files, silent = set(), []
    for path in (ROOT / "tests").rglob("test_*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        said = False
        for number, line in enumerate(lines):
            if not PRIVATE_IMPORT.match(line):
                continue
            files.add(path)
            said = said or any("# Private: " in above for above in lines[max(0, number - 6) : number])
            if not said:
                silent.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert not silent
    assert len(files) <= MOST_PRIVATE


#: Test files that import private modules; it is to shrink.
MOST_PRIVATE = 23
PRIVATE_IMPORT = re.compile(
    r"\s*(from ascend_dump(_\w+)?\.([a-z_.]+\.)?_\w+ import|import ascend_dump(_\w+)?\.([a-z_.]+\.)?_\w+"
    r"|from ascend_dump(_\w+)?(\.[a-z_]+)* import (\w+, |\w+ as )*_)"
)


def names_imported(node: Union[ast.Import, ast.ImportFrom]) -> list[str]:
    base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [f"{base}{alias.name}" for alias in node.names]


def loaded_by(statement: str) -> set[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules)\n"
        f"{statement}\nprint(*(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_else() -> None:
    assert loaded_by("import ascend_dump") <= {"__future__", "ascend_dump", "ascend_dump._version"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls", "--help"], ["explain", "AD101"]])
def test_the_command_line_loads_nothing_heavy_to_explain_itself(arguments: list[str]) -> None:
    loaded = loaded_by(f"from ascend_dump.cli import main; main({arguments!r})")
    assert "ascend_dump.cli" in loaded
    heavy = {"numpy", "torch", "msgspec", "wrapt", "polars", "rich", "numba", "safetensors", "asyncio"}
    assert not loaded & (heavy | FRAMEWORKS)


def test_the_launcher_checks_a_request_without_loading_a_framework(tmp_path: Path) -> None:
    arguments = ["run", "--path", str(tmp_path), "--scene", "watch", "--dry-run", "--", "env"]
    loaded = loaded_by(f"from ascend_dump.cli import main; main({arguments!r})")
    assert "ascend_dump.cli.run" in loaded
    assert not loaded & FRAMEWORKS


def test_importing_what_authors_of_adapters_need_loads_nothing_heavy() -> None:
    alone = {"__future__", "ascend_dump", "ascend_dump._version", "ascend_dump.adapter"}
    assert loaded_by("import ascend_dump.adapter") <= alone
    names = "Adapter, DumpRequest, Problem, RunDirectory, Session, Steps, at_exit, current_rank"
    loaded = loaded_by(f"from ascend_dump.adapter import {names}")
    heavy = {"numpy", "msgspec", "wrapt", "numba", "safetensors", "importlib.metadata", "ascend_dump.writing"}
    assert "ascend_dump.adapter._contract" in loaded
    assert not loaded & (heavy | FRAMEWORKS)


@pytest.mark.parametrize(
    "name",
    [
        "ascend_dump",
        *(f"ascend_dump.{part}" for part in ("adapter", "dump_format", "reading", "statistics", "writing")),
    ],
)
def test_the_public_names_are_all_there_and_listed_once(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert len(package.__all__) == len(set(package.__all__))
    for public in package.__all__:
        assert getattr(package, public) is not None


def test_every_error_is_a_public_name() -> None:
    defined = sys.modules[ascend_dump.AscendDumpError.__module__].__all__
    assert set(defined) <= set(ascend_dump.__all__)


@pytest.mark.parametrize("package", [ascend_dump, ascend_dump.adapter], ids=lambda package: package.__name__)
def test_type_checkers_see_what_users_get(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        seen.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
    assert set(seen) - {"__version__"} == set(package.__all__) - {"__version__"}
    for name, (module, there) in seen.items():
        assert getattr(package, name) is getattr(__import__(module or "", fromlist=[there]), there), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'captur'"):
        _ = ascend_dump.captur  # type: ignore[attr-defined]  # the point of the test
