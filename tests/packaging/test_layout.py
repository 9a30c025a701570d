"""What must agree in the source tree, because no tool checks it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return found


def adapter_packages() -> set[str]:
    return {path.name for path in (REPOSITORY / "adapters").iterdir() if path.name.startswith("ascend_dump_")}


def test_the_packages_of_the_wheel_are_the_adapters_in_the_tree(project: dict[str, Any]) -> None:
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(listed) == sorted(["ascend_dump", *(f"adapters/{name}" for name in adapter_packages())])


def test_the_entry_points_are_the_adapters_in_the_tree(project: dict[str, Any]) -> None:
    entries = project["project"]["entry-points"]["ascend_dump.adapters"]
    assert sorted(target.partition(":")[0] for target in entries.values()) == sorted(adapter_packages())
    for name, target in entries.items():
        assert target.partition(":")[0] == f"ascend_dump_{name}"


def test_mypy_checks_every_package(project: dict[str, Any]) -> None:
    assert sorted(project["tool"]["mypy"]["packages"]) == sorted(["ascend_dump", *adapter_packages()])


def test_every_package_says_that_it_is_typed() -> None:
    roots = [REPOSITORY / "ascend_dump", *(REPOSITORY / "adapters" / name for name in adapter_packages())]
    assert [root for root in roots if not (root / "py.typed").is_file()] == []


@pytest.mark.parametrize("folder", ["adapters", "docker", "examples", "tests"])
def test_no_folder_shadows_a_distribution_of_its_name(folder: str) -> None:
    # An editable installation puts the repository on sys.path, where a regular package would win.
    assert not (REPOSITORY / folder / "__init__.py").exists()


def test_the_third_party_adapter_is_built_as_ours_are(project: dict[str, Any]) -> None:
    other = tomllib.loads((REPOSITORY / "tests/data/third_party_adapter/pyproject.toml").read_text())
    assert set(other["project"]["entry-points"]) == {"ascend_dump.adapters"}
    assert other["build-system"] == project["build-system"]


def test_no_dependency_moves_numpy_to_version_2(project: dict[str, Any]) -> None:
    """ml-dtypes 0.6 needs numpy 2, and pip rather moves an installed numpy 1.26 than takes an older ml-dtypes."""
    found = [text for text in project["project"]["dependencies"] if text.startswith(("ml-dtypes", "numpy"))]
    assert found == [
        "ml-dtypes>=0.3.1,<0.6; python_version < '3.13'",
        "ml-dtypes>=0.5; python_version >= '3.13'",
        "numpy>=1.21",
    ]


def test_supported_versions_agree(project: dict[str, Any]) -> None:
    makefile = Path(REPOSITORY / "Makefile").read_text()
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert f"OLDEST := {oldest}\n" in makefile
