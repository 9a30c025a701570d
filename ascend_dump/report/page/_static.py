"""What a page says without its script: verdict, findings, the first rows, what was not looked at, how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as markup_escape
from typing import Optional

from ascend_dump.report.page._content import STATES, PageContent, PageFinding
from ascend_dump.report.page.rows import RowTable
from ascend_dump.report.tables import counted, escape_lines

__all__ = ["FIRST_ROWS", "findings", "first_rows", "made", "text", "unmatched", "verdict"]

#: Rows that are readable without the script, and findings and lines of what has no partner.
FIRST_ROWS = 40
_MOST_NAMED = 200
#: Findings that are open; the others are folded.
_OPEN = 3
_LONGEST = 12_000
_FINE = {"equal", "noise", "nothing found"}
#: Those of a comparison are states; "not all checked" is the verdict of one dump alone.
_OPEN_VERDICTS = {"undecided", "unmatched", "not all checked"}


def text(value: object) -> str:
    """Text for a page: nothing in it is markup, and characters that draw nothing are spelled out."""
    found = str(value)
    if len(found) > _LONGEST:
        found = f"{found[:_LONGEST]}… ({len(found)} characters)"
    return markup_escape(escape_lines(found))


def verdict(content: PageContent, counts: Sequence[tuple[int, int]]) -> str:
    """counts: number of a state and of its rows."""
    kind = "fine" if content.verdict in _FINE else "open" if content.verdict in _OPEN_VERDICTS else "wrong"
    sign = next((state.sign for state in STATES if state.name == content.verdict), "?" if kind == "open" else "▲")
    told = ", ".join(f"{count} {STATES[number].name}" for number, count in counts)
    command = f"<p>Run next:</p>\n<code class='command'>{text(content.command)}</code>" if content.command else ""
    return (
        f"<div class='state-{kind}'><span class='badge'>{sign} {text(content.verdict)}</span>"
        f"<span class='counts'>{text(told)}</span>\n"
        f"<p class='sentence'>{text(content.sentence)}</p>\n{_facts(content.facts)}{command}</div>"
    )


def findings(content: PageContent, numbers: Sequence[Optional[int]]) -> str:
    """numbers: of the row where each finding was seen, and what is named beside them; None where it is not on the
    page."""
    beside = _named("Called with other arguments", content.changed, numbers[len(content.findings) :])
    what = "Origins" if content.compared else "Suspects"
    if not content.findings:
        none = "No difference has an origin of its own." if content.compared else "No rule names a suspect."
        return f"<h2>{what}</h2>\n<p class='soft'>{none}</p>{beside}"
    return _named(what, content.findings, numbers) + beside


def _named(what: str, named: Sequence[PageFinding], numbers: Sequence[Optional[int]]) -> str:
    if not named:
        return ""
    shown = [_finding(one, number) for one, number in zip(named[:_MOST_NAMED], numbers)]
    rest = ""
    if len(shown) > _OPEN:
        rest = f"<details><summary>and {len(shown) - _OPEN} more</summary>\n{''.join(shown[_OPEN:])}</details>"
    left = len(named) - len(shown)
    more = f"<p>{left} more are not told here: the table shows them all.</p>" if left else ""
    count = f"<span class='soft'>{len(named)}</span>"
    return f"<h2>{what} {count}</h2>\n{''.join(shown[:_OPEN])}{rest}{more}"


def _finding(one: PageFinding, number: Optional[int]) -> str:
    button = "" if number is None else f"<button type='button' class='go' data-row='{number}' hidden>Show</button>"
    return (
        f"<article class='finding'><h3><span class='name'>{text(one.title)}</span>{button}</h3>\n"
        f"{_facts(one.lines)}</article>\n"
    )


def first_rows(table: RowTable, chosen: Sequence[int], compared: bool) -> str:
    """Some rows, for browsers without scripts and for paper."""
    names = ["", "step", "rank", "tensor", "operator", "type and shape", "found"]
    names += ["rel. error", "max |d|"] if compared else ["rms", "max", "min"]
    lines = []
    for number in chosen:
        row = table.rows[number]
        record = row.record
        state = STATES[table.state[number]]
        shape = "" if record.shape is None else f"[{', '.join(map(str, record.shape))}]"
        reason = f"<div class='soft'>{text(row.reason)}</div>" if row.reason else ""
        cells = [text(state.sign), _cell(record.step), _cell(record.rank), f"{text(record.label)}{reason}"]
        cells += [text(record.op_type), text(f"{record.dtype or ''}{shape}"), state.name]
        numbers: Sequence[Optional[float]]
        if compared:
            numbers = (None, None) if row.error is None else (row.error.rel_l2, row.error.max_abs)
        else:
            found = table.statistics(number)
            numbers = (table.root_mean_square(number), *((None, None) if found is None else (found.max, found.min)))
        cells += ["" if one is None else f"{one:.4g}" for one in numbers]
        shown = "".join(f"<td{_CELLS.get(at, '')}>{cell}</td>" for at, cell in enumerate(cells))
        lines.append(f"<tr>{shown}</tr>\n")
    if not lines:
        return "<p>No rows.</p>"
    head = "".join(f"<th>{name}</th>" for name in names)
    several = len(table.rows) > len(lines)
    note = f"<p class='soft'>The {len(lines)} of {len(table.rows)} rows to look at first.</p>" if several else ""
    body = "".join(lines)
    return f"{note}<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"


#: Classes of cells by their place.
_CELLS = {3: " class=name", 4: " class=text", 5: " class=text"}


def _cell(value: Optional[int]) -> str:
    return "" if value is None else str(value)


def unmatched(alone: Sequence[str], unreadable: Sequence[tuple[str, str]], compared: bool) -> str:
    """alone: what has no partner, and why, one line each."""
    parts = [f"<h2>{'Unmatched and unreadable' if compared else 'Unreadable'}</h2>\n"]
    if compared:
        parts.append(_list(alone, "Every record has a partner on the other side.", "has no partner"))
    lines = [f"{name}: {why}" for name, why in unreadable]
    parts.append(_list(lines, "Every record could be read.", "cannot be read"))
    return "".join(parts)


def _list(lines: Sequence[str], nothing: str, title: str) -> str:
    if not lines:
        return f"<p class='soft'>{nothing}</p>\n"
    items = "".join(f"<li class='name'>{text(line)}</li>\n" for line in lines[:_MOST_NAMED])
    more = f"<li>and {len(lines) - _MOST_NAMED} more</li>\n" if len(lines) > _MOST_NAMED else ""
    opened = " open" if len(lines) <= 20 else ""
    verb = title.replace("has", "have") if len(lines) > 1 else title
    summary = f"{counted(len(lines), 'record')} {verb}"
    return f"<details{opened}><summary>{summary}</summary><ul>\n{items}{more}</ul></details>\n"


def made(facts: Sequence[tuple[str, str]], left_out: Sequence[str]) -> str:
    """How the page was made, and what is not on it."""
    notes = "".join(f"<li>{text(note)}</li>\n" for note in left_out)
    said = f"<h4>Left out</h4>\n<ul>\n{notes}</ul>\n" if notes else "<p class='soft'>Nothing was left out.</p>"
    return f"<h2>How this page was made</h2>\n{_facts(facts)}{said}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>\n" for name, value in facts)
    return f"<dl class='facts'>\n{lines}</dl>\n" if lines else ""
