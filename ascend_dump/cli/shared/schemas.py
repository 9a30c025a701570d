"""JSON Schemas of the documents that verbs print with `--json`, and of the lines of index.jsonl.

If the values in a document have a type, such as a named tuple, the schema is generated from the type. `write_document`
adds the field `schema`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import msgspec
import msgspec.structs

from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError
from ascend_dump.report.documents import VERSION

__all__ = ["INDEX", "schema", "schema_names"]

#: The name of the schema of a line of index.jsonl.
INDEX = "index.jsonl"

_Fields = dict[str, Any]
_Number: Any = Union[float, Literal["NaN", "Infinity", "-Infinity"]]
_Text: Any = Optional[str]
_Count: Any = Optional[int]
_Texts: Any = list[str]


def schema_names() -> list[str]:
    """Return the names of all schemas: the documents, and INDEX."""
    return [*_documents(), INDEX]


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document or of INDEX. Raises ConfigError for another name."""
    if name not in schema_names():
        guess = did_you_mean(name, schema_names(), cutoff=0.5)
        raise ConfigError(f"there is no schema {name!r}", hint=f"{guess}schemas: {', '.join(schema_names())}")
    title = f"ascend-dump/{name}/{VERSION}"
    if name == INDEX:
        forms = [_index_line()]
    else:
        forms = [
            _object(f"{name}-{number}", {"schema": Literal[title], **fields})
            for number, fields in enumerate(_documents()[name], 1)
        ]
    references, components = msgspec.json.schema_components(forms, ref_template="#/$defs/{name}")
    form = references[0] if len(references) == 1 else {"anyOf": list(references)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **form, "$defs": components}


def _index_line() -> Any:
    """Return the type of a line of index.jsonl.

    In `Line` the field `call` has undecoded bytes; here it has the type of a decoded call.
    """
    from ascend_dump.dump_format import GeneratorState, Line

    state = _values_of(GeneratorState)
    generator = _object("GeneratorState", {"device": state.pop("device")}, state)
    call = _object("Call", {"op": str, "args": dict[str, Any]}, {"generator": generator, "stack": _Texts})
    fields: list[Any] = []
    for field in msgspec.structs.fields(Line):
        if field.name == "call":
            fields.append((field.name, Union[call, msgspec.UnsetType], msgspec.UNSET))
        else:
            default = () if field.default is msgspec.NODEFAULT else (field.default,)
            fields.append((field.name, field.type, *default))
    return msgspec.defstruct("Line", fields, namespace={"__doc__": Line.__doc__})


def _object(name: str, fields: _Fields, optional: Optional[_Fields] = None) -> Any:
    """Return a type for a JSON object with these fields. optional: fields that may be absent."""
    absent = {field: Union[kind, msgspec.UnsetType] for field, kind in (optional or {}).items()}
    required = list(fields.items())
    return msgspec.defstruct(name, [*required, *((field, kind, msgspec.UNSET) for field, kind in absent.items())])


def _list(item: Any) -> Any:
    return GenericAlias(list, (item,))


def _optional(kind: Any) -> Any:
    return Union[kind, None]


def _values_of(kind: Any) -> _Fields:
    """Return the fields of a named tuple or dataclass, with the types that their values have in JSON."""
    return {name: _plain(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _plain(hint: Any) -> Any:
    if hint is float:
        return _Number
    if hint is Path:
        return str
    if get_origin(hint) is Union:
        return Union[tuple(map(_plain, get_args(hint)))]
    if get_origin(hint) is tuple:
        return tuple[tuple(item if item is ... else _plain(item) for item in get_args(hint))]  # type: ignore[misc]  # at run time
    return hint


def _picked(kind: Any, names: str) -> _Fields:
    fields = _values_of(kind)
    return {name: fields[name] for name in names.split()}


@lru_cache(1)
def _documents() -> dict[str, tuple[_Fields, ...]]:
    """Return, for each document, the fields of each form that it may have."""
    note = _object("Note", {"path": str, "note": str})
    error = _object("Error", {"type": str, "message": str}, {"code": str, "hint": _Text, "path": str, "offset": int})
    return {
        **_of_reading(note, error),
        **_of_analyses(note, error),
        **_of_captures(error),
        "error": ({"exit": int, "error": error},),
    }


def _record(error: Any) -> tuple[_Fields, _Fields]:
    """Return the fields of a record, and its fields that may be absent."""
    from ascend_dump.reading import Record

    names = (
        "op_type op_name io index step rank device model model_id run task_id stream_id timestamp dtype shape format"
    )
    fields = _picked(Record, f"{names} nbytes phase module source kernel path")
    return fields, {"attrs": dict[str, Any], "error": Union[str, error]}


def _statistics() -> Any:
    from ascend_dump.statistics import Statistics

    return _optional(_object("Statistics", _values_of(Statistics)))


def _of_reading(note: Any, error: Any) -> dict[str, tuple[_Fields, ...]]:
    from ascend_dump.reading import Run

    fields, more = _record(error)
    statistics = _statistics()
    counts = dict.fromkeys(("operators", "tensors", "bytes", "nan", "inf"), int)
    place = {"run": _Text, "rank": _Count, "model": _Text, "step": _Count, "module": _Text}
    module = _object("Module", {**place, **counts, "largest": Optional[_Number], "worst": _Text})
    modules: _Fields = {"path": str, "modules": _list(module)}
    totals = dict.fromkeys(("records", "operators", "kernels", "bytes", "steps", "ranks", "unreadable"), int)
    listing: _Fields = {"path": str, "records": _list(_object("Record", fields, {**more, "label": str}))}
    listing.update(totals=_object("Totals", totals), unended=_list(_object("Run", _values_of(Run))), notes=_list(note))
    listing.update(labels=dict[str, list[str]])
    shown = {"arguments": dict[str, Any], "stack": _Texts, "first_values": list[Any], "last_values": list[Any]}
    with_values = _object("ShownRecord", {**fields, "statistics": statistics, "values": Any}, {**more, **shown})
    measured = _object("MeasuredRecord", {**fields, "statistics": statistics}, more)
    failure = _object("Failure", {"what": str, "error": error})
    file = _object("File", {"source": str, "written": _Texts, "problems": _Texts, "failures": _list(failure)})
    sums = dict.fromkeys(("files", "written", "bytes", "failed_files", "failures", "skipped"), int)
    return {
        "ls": (listing, modules),
        "show": ({"path": str, "records": _list(with_values)},),
        "stats": ({"path": str, "records": _list(measured)}, modules),
        "convert": ({"out": str, "files": _list(file), "totals": _object("Sums", sums, {"records": int})},),
        "help": ({"pages": _list(_object("Page", dict.fromkeys(("code", "title", "text"), str)))},),
        "explain": ({"pages": _list(_object("Page", dict.fromkeys(("code", "title", "text"), str)))},),
    }


def _of_analyses(note: Any, error: Any) -> dict[str, tuple[_Fields, ...]]:
    from ascend_dump.analysis.compare import Measure, Surrounding
    from ascend_dump.analysis.explaining.results import Crossing, Rebuilt
    from ascend_dump.analysis.overwritten_outputs import Trample
    from ascend_dump.analysis.ranks.index_comparison import RankOrigin
    from ascend_dump.analysis.replay import Refused
    from ascend_dump.analysis.triage import Cause, TriageRound
    from ascend_dump.reading import Record

    measure = _optional(_object("Measure", _values_of(Measure)))
    operator = _picked(Record, "step rank op_name op_type module source")
    tensor = {**operator, **_picked(Record, "io index phase")}
    judged = {"verdict": str, "reason": str, "how": str, "confidence": float, "transformation": str, "explained": bool}
    sides = {"actual": _Text, "reference": _Text}
    pair = _object("Pair", {**tensor, **sides, **judged, "undefined": str, "measure": measure})
    found = {"kind": str, "meaning": str, "evidence": _Texts, "explains": int, "first_seen": bool}
    origin = _object("Origin", {**operator, **found, "next": dict[str, Any], "pair": pair})
    changed = _object("ChangedCall", {**operator, "arguments": _Texts, "others": int, "pair": pair})
    numbers = _object("Sides", {"actual": int, "reference": int})
    counts = dict[str, int]
    compared: _Fields = {"actual": str, "reference": str, "verdict": str, "counts": counts, "origins": _list(origin)}
    compared.update(changed=_list(changed), rules=dict[str, Any], undefined=counts, inside=numbers, left_out=numbers)
    crossings = _list(_object("Crossing", _values_of(Crossing)))
    compared.update(rebuilt=_list(_object("Rebuilt", _values_of(Rebuilt))))
    compared.update(around=_list(_object("Surrounding", _values_of(Surrounding))))
    compared.update(labels=dict[str, str], omitted=counts)
    compared.update(
        unused=_Texts, allowed=_Texts, aligned=_Texts, crossings=crossings, pairs=_list(pair), notes=_list(note)
    )
    row = {**dict.fromkeys(("rank", "rows", "unequal", "alone", "undecided", "unreadable"), int), "position": _Count}
    row.update(dict.fromkeys(("kind", "op_type", "op_name", "io", "source"), _Text), step=_Count, index=_Count)
    by_index: _Fields = {"verdict": str, "origins": _list(_object("RankOrigin", _values_of(RankOrigin)))}
    by_index.update(missing=list[int], ranks=_list(_object("Rank", row)), notes=_list(note))
    suspect = {**tensor, "rule": str, "reason": str, "again": int, "producers": _Texts, "order": str}
    triage: _Fields = {
        "dump": str,
        "reference": _Text,
        "verdict": _Text,
        "suspects": _list(_object("Suspect", suspect)),
    }
    triage.update(origins=_list(origin), next=Optional[dict[str, Any]], advice=str, reasons=_Texts, notes=_Texts)
    triage.update(cause=_optional(_object("Cause", _values_of(Cause))), confirmation=str, written=_Text)
    triage.update(harmless=_Texts, why=str, when=str)
    triage["rounds"] = _list(_object("Round", _values_of(TriageRound)))
    again = {name: operator[name] for name in operator}
    again.update(index=int, node=_Text, verdict=str, reason=str, measure=measure, own=measure)
    refused = _object("Refused", _values_of(Refused))
    replay: _Fields = {"verdict": str, "dtype": str, "counts": counts, "pairs": _list(_object("Replayed", again))}
    report: _Fields = {"page": str, "bytes": int, "rows": int, "verdict": str, "sentence": str, "unreadable": int}
    names = "step rank device model model_id run timestamp op_type index dtype shape nbytes path"
    trample = {"layer": str, "watched": str, **_values_of(Trample), **_picked(Record, names), "base": str}
    watch: _Fields = {"path": str, "compared": int, "pairs": int, "tramples": _list(_object("Trample", trample))}
    return {
        "compare": (compared,),
        "compare-indexes": (by_index,),
        "compare-weights": (_compare_weights(counts, numbers),),
        "local-errors": (_local_errors(note),),
        "triage": (triage,),
        "overflow": (_overflow(error),),
        "trends": (_trends(note),),
        "replay": ({**replay, "refused": _list(refused)},),
        "report": ({**report, "notes": _list(note)},),
        "serve": ({"address": str, "verdict": str},),
        "watch": (watch,),
        "ops": ({"path": str, "model": str, "operators": list[dict[str, Any]], "error": _optional(error)},),
        "demo": (_demo(origin, error),),
    }


def _trends(note: Any) -> _Fields:
    place = {"kind": str, "name": str, "quantity": str, "run": _Text, "rank": _Count, "model": _Text}
    spike = _object("CurveSpike", {"step": int, "value": _Number, "median": _Number, "stays": bool})
    curve = _object(
        "Curve",
        {**place, "steps": list[int], "values": _list(_Number), "moved": _Number, "spikes": _list(spike)},
    )
    numbers = {"actual": _Number, "reference": _Number, "distance": _Number, "noise": _optional(_Number)}
    fields: _Fields = {"path": str, "reference": _Text, "noise": _Text, "verdict": str}
    fields.update(partings=_list(_object("Parting", {**place, "step": int, **numbers})), unmatched=int)
    fields.update(curves=_list(curve), reference_curves=_list(curve), notes=_list(note), unreadable=int)
    return fields


def _local_errors(note: Any) -> _Fields:
    from ascend_dump.analysis.quantised.measures import ErrorNumbers, Outlier
    from ascend_dump.reading import Record

    outlier = _object("Outlier", {**_values_of(Outlier), "largest": _Number, "times": _Number})
    layer: _Fields = {"layer": str, "op_type": str, "verdict": str, "reason": str, "quantisers": _Texts}
    layer.update(dict.fromkeys(ErrorNumbers._fields, _Number), cosine=Optional[_Number], channels=list[int])
    layer.update(arrived=Optional[_Number], share=Optional[_Number], outliers=_list(outlier), is_quantised=bool)
    layer.update(_picked(Record, "op_name step rank module source"))
    refused = _object("RefusedLayer", {"layer": str, "reason": str})
    fields: _Fields = {**dict.fromkeys(("actual", "reference", "verdict", "advice"), str), "final": Optional[_Number]}
    return {
        **fields,
        "layers": _list(_object("Layer", layer)),
        "refused": _list(refused),
        "leave_out": _Texts,
        "notes": _list(note),
    }


def _compare_weights(counts: Any, numbers: Any) -> _Fields:
    from ascend_dump.analysis.weights import WeightFinding, WeightPart

    part = _object("WeightPart", _values_of(WeightPart))
    finding = {**_values_of(WeightFinding), "parts": _list(part)}
    fields: _Fields = {**dict.fromkeys(("actual", "reference", "verdict"), str), "counts": counts, "weights": numbers}
    return {**fields, "bytes": int, "findings": _list(_object("WeightFinding", finding))}


def _overflow(error: Any) -> _Fields:
    from ascend_dump.reading import Record

    fields, more = _record(error)
    tensor = _object("MeasuredRecord", {**fields, "statistics": _statistics()}, more)
    named = {"op_type": str, "op_name": _Text, "path": str, "tensors": _list(tensor)}
    operator = _object("Operator", named, {"paths": _Texts})
    shown = _object("Shown", _picked(Record, "timestamp step rank device model model_id run path"))
    found: _Fields = {"kind": str, "source": _Text, "unit": str, "status": list[int], "words": _Texts, "record": shown}
    found.update(operator=_optional(operator), document=Any, problems=_Texts)
    ids = dict.fromkeys(("model_id", "stream_id", "task_id", "context_id", "thread_id"), _Count)
    counts = dict.fromkeys(("total", "operators", "checked", "followed", "masks"), int)
    overflows = _list(_object("Overflow", found, ids))
    texts: _Fields = {"harmless": _Texts, "reasons": _Texts, "notes": _Texts}
    return {"path": str, "answer": str, "overflows": overflows, **counts, **texts}


def _demo(origin: Any, error: Any) -> _Fields:
    texts = dict.fromkeys(("actual", "reference", "verdict", "command"), str)
    record = _object("Record", *_record(error))
    fields: _Fields = {"dump": str, "records": int, "origin": Any, "record": record, "statistics": _statistics()}
    return {**fields, "command": str, "comparison": _object("DemoComparison", {**texts, "origin": origin})}


def _of_captures(error: Any) -> dict[str, tuple[_Fields, ...]]:
    from ascend_dump.adapter import AdapterInfo, Problem
    from ascend_dump.converting.push import Pushed
    from ascend_dump.reading import DialectInfo
    from ascend_dump.selftest.checks import CheckResult

    problems = _list(_object("Problem", _values_of(Problem)))
    process = {"pid": int, "rank": int, "world": int, "command": _Texts, "capture": Optional[dict[str, Any]]}
    python = _object("Python", dict.fromkeys(("version", "executable", "package"), str))
    doctor: _Fields = {"ok": bool, "version": str, "python": python, "packages": dict[str, dict[str, _Text]]}
    doctor.update(conflicts=Optional[_Texts], cann=_Text, adapters=_list(_object("Adapter", _values_of(AdapterInfo))))
    doctor.update(dialects=_list(_object("Dialect", _values_of(DialectInfo))), activation=dict[str, Any])
    doctor["path"] = _object("Target", {"path": str, "writable": bool, "free_bytes": _Count, "error": _Text})
    results = _list(_object("CheckResult", _values_of(CheckResult)))
    selftest: _Fields = {"ok": bool, "simulated": bool, "device": bool, "results": results}
    selftest.update(assumptions=list[dict[str, Any]], versions=dict[str, Any])
    return {
        "run": ({"environment": dict[str, str], "command": _Texts},),
        "attach": ({"processes": _list(_object("Process", process))},),
        "check": ({"file": str, "against": str, "accepted": bool, "problems": problems},),
        "config": ({"for": str, "config": Any, "python": Any, "written": _Text, "problems": problems},),
        "push": ({"path": str, **_values_of(Pushed)},),
        "doctor": (doctor,),
        "selftest": (selftest, {**selftest, "report": str}),
    }
