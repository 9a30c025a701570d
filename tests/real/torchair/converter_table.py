"""The page that says which operators of PyTorch reach the simulated NPU through torchair, from what was measured.

    python converter_table.py VERSION=converters.json ... > ascend_dump/pages/topics/converters.md

Each converters.json is what `programs/measure_converters.py` wrote under torchair of that version.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DIFFERENCES", "page"]

#: Measurements of one version: operator -> core, declared, outcomes (result, detail, types).
_Report = Mapping[str, Mapping[str, Any]]

#: Results, from good to bad. The worst one of an operator is the one it is counted under.
_RESULTS = ("equal", "no reference", "refused", "differs", "fails", "not simulated")
_MEANING = {
    "equal": "every case gives what eager mode gives",
    "no reference": "some case eager mode cannot compute",
    "refused": "of some case torchair makes no graph",
    "differs": "some case gives something else",
    "fails": "some case cannot be computed",
    "not simulated": "some GE operator is not simulated",
    "no case": "no case: no graph of fixed sizes holds them",
}
#: Why values are not those of eager mode.
DIFFERENCES = {
    "aten._embedding_bag.default": "torchair takes `mode` 1, the mean, where none is given; ATen's default is the sum",
    "aten.avg_pool2d.default": "torchair leaves the padding of float16 and int8 out of the mean, whatever "
    "`count_include_pad` says",
    "aten.gelu.default": "`Gelu` is the approximation by tanh, whatever `approximate` says",
    "aten.gelu_backward.default": "`GeluGrad` is that of the approximation by tanh",
    "aten.native_batch_norm_backward.default": "torchair's converter takes the variance of the batch for its inverse "
    "deviation, as its forward operator gives it; the declared cases know nothing of that",
}
_HEAD = """\
# converters: which operators of PyTorch the simulated NPU computes under the real torchair

torchair converts each ATen operator of a compiled graph into GE operators. With `torchair_native` its real Python runs
on the simulated NPU, which computes those operators; one it does not have raises `NotSupported` with its name.

Each operator is run alone and compared with eager mode on the CPU, on the test cases that its converter declares, or on
cases of this project if there are none, only few, or cases that eager mode refuses. Differences of a few roundings in
the coarsest type of the inputs are accepted; random operators are compared by distribution. A refused operator is tried
again after decomposition, as `torch.compile` does. Sizes are fixed, and torch_npu is not installed, so converters for
Ascend950 only are missing. `make test-real-torchair` repeats the measurement and compares it with this page.

All versions run under PyTorch 2.13.0. torchair before 2.13 was made for older versions of PyTorch: it skips a module of
converters that uses an operator which PyTorch has removed, with all converters in it (`full`, `select`, ...).

| operators | {versions} |
|---|{rules}|
"""
_TABLE = """
## {title}

{explanation} Where versions differ, they stand in brackets.

| operator | cases | GE operators |
|---|---|---|
"""


class _Row(NamedTuple):
    cases: str
    types: str


def page(reports: Mapping[str, _Report]) -> str:
    """The page, from the measurements of each version, oldest first."""
    versions = list(reports)
    head = _HEAD.format(versions=" | ".join(versions), rules="---|" * len(versions)).replace("||\n", "|\n")
    parts = [head]
    for title, core in (("core", True), ("other", False)):
        parts.append(_counts(reports, title, core))
    explanation = "ATen's core set (`torch.Tag.core`)."
    parts.append(_TABLE.format(title="Core operators", explanation=explanation))
    parts.extend(_rows(reports, core=True))
    explanation = "Outside of the core set: operators whose converters declare cases, and some of training programs."
    parts.append(_TABLE.format(title="Other operators", explanation=explanation))
    parts.extend(_rows(reports, core=False))
    used = [
        name for name in sorted(DIFFERENCES) if any(_worst(each.get(name)) == "differs" for each in reports.values())
    ]
    parts.append("\n## Why values differ\n\n")
    parts.extend(f"- `{name[len('aten.') :]}`: {DIFFERENCES[name]}.\n" for name in used)
    return "".join(parts)


def _worst(measured: Any) -> str:
    if measured is None or not measured["outcomes"]:
        return "no case"
    return max((result for result, _, _ in measured["outcomes"]), key=_RESULTS.index)


def _counts(reports: Mapping[str, _Report], title: str, core: bool) -> str:
    found = [Counter(_worst(each) for each in report.values() if each["core"] == core) for report in reports.values()]
    lines = [f"| {title} | {' | '.join(str(sum(each.values())) for each in found)} |\n"]
    for result, meaning in _MEANING.items():
        if any(each[result] for each in found):
            lines.append(f"| {title}: {meaning} | {' | '.join(str(each[result]) for each in found)} |\n")
    return "".join(lines)


def _rows(reports: Mapping[str, _Report], *, core: bool) -> Iterator[str]:
    names = {name for report in reports.values() for name, each in report.items() if each["core"] == core}
    for name in sorted(names):
        groups: dict[_Row, list[str]] = {}
        for version, report in reports.items():
            groups.setdefault(_row(report.get(name)), []).append(version)
        for row, versions in groups.items():
            where = "" if len(groups) == 1 else f" ({', '.join(versions)})"
            yield f"| `{name[len('aten.') :]}`{where} | {row.cases} | {row.types} |\n"


def _row(measured: Any) -> _Row:
    if measured is None or not measured["outcomes"]:
        return _Row("none", "")
    outcomes: Sequence[Any] = measured["outcomes"]
    counts = Counter(result for result, _, _ in outcomes)
    decomposed = any(detail == "decomposed" for _, detail, _ in outcomes)
    cases = ", ".join(f"{counts[result]} {result}" for result in _RESULTS if counts[result])
    types = sorted({name for _, _, types in outcomes for name in types})
    return _Row(cases + (" (decomposed)" if decomposed else ""), ", ".join(types))


def main(*given: str) -> None:
    pairs = [each.split("=", 1) for each in given]
    sys.stdout.write(page({version: json.loads(Path(path).read_text()) for version, path in pairs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
