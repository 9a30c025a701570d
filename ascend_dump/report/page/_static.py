"""The parts of a page that need no JavaScript: verdict, findings, first rows, unmatched records, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as markup_escape
from typing import Optional

from ascend_dump.report.page._content import STATES, PageContent, PageFinding
from ascend_dump.report.page.rows import RowTable
from ascend_dump.report.tables import counted, escape_lines

__all__ = ["FIRST_ROWS", "findings", "first_rows", "provenance", "text", "unmatched", "verdict"]

#: Number of rows that are shown without JavaScript, and maximum number of findings or records in a list.
FIRST_ROWS = 40
_MOST_NAMED = 200
#: Number of findings that are shown directly. Later ones are in a collapsed section.
_OPEN = 3
#: Maximum number of characters of a text.
_LONGEST = 12_000
_FINE = {"equal", "noise", "nothing found"}
#: Verdicts that are neither good nor bad. "not all checked" is a verdict of a single dump, the others are states.
_OPEN_VERDICTS = {"undecided", "unmatched", "not all checked"}


def text(value: object) -> str:
    """Return the value as text for a page: markup is escaped, control characters are written as escape sequences."""
    shown = str(value)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}… ({len(shown)} characters)"
    return markup_escape(escape_lines(shown))


def verdict(content: PageContent, counts: Sequence[tuple[int, int]]) -> str:
    """Return the verdict as HTML. counts: pairs of an index in STATES and the number of rows with that state."""
    kind = "fine" if content.verdict in _FINE else "open" if content.verdict in _OPEN_VERDICTS else "wrong"
    sign = next((state.sign for state in STATES if state.name == content.verdict), "?" if kind == "open" else "▲")
    summary = ", ".join(f"{count} {STATES[number].name}" for number, count in counts)
    command = f"<p>Run next:</p>\n<code class='command'>{text(content.command)}</code>" if content.command else ""
    return (
        f"<div class='state-{kind}'><span class='badge'>{sign} {text(content.verdict)}</span>"
        f"<span class='counts'>{text(summary)}</span>\n"
        f"<p class='sentence'>{text(content.sentence)}</p>\n{_facts(content.facts)}{command}</div>"
    )


def findings(content: PageContent, numbers: Sequence[Optional[int]]) -> str:
    """Return the findings as HTML. numbers: the row of each of `content.named`, None if it is not on the page."""
    beside = _named("Called with other arguments", content.changed, numbers[len(content.findings) :])
    what = "Origins" if content.compared else "Suspects"
    if not content.findings:
        none = "No difference has an origin of its own." if content.compared else "No rule names a suspect."
        return f"<h2>{what}</h2>\n<p class='soft'>{none}</p>{beside}"
    return _named(what, content.findings, numbers) + beside


def _named(what: str, named: Sequence[PageFinding], numbers: Sequence[Optional[int]]) -> str:
    if not named:
        return ""
    shown = [_finding(finding, number) for finding, number in zip(named[:_MOST_NAMED], numbers)]
    folded = ""
    if len(shown) > _OPEN:
        folded = f"<details><summary>and {len(shown) - _OPEN} more</summary>\n{''.join(shown[_OPEN:])}</details>"
    hidden = len(named) - len(shown)
    note = f"<p>{hidden} more are not listed here: the table shows all.</p>" if hidden else ""
    count = f"<span class='soft'>{len(named)}</span>"
    return f"<h2>{what} {count}</h2>\n{''.join(shown[:_OPEN])}{folded}{note}"


def _finding(finding: PageFinding, number: Optional[int]) -> str:
    button = "" if number is None else f"<button type='button' class='go' data-row='{number}' hidden>Show</button>"
    return (
        f"<article class='finding'><h3><span class='name'>{text(finding.title)}</span>{button}</h3>\n"
        f"{_facts(finding.lines)}</article>\n"
    )


def first_rows(table: RowTable, chosen: Sequence[int], compared: bool) -> str:
    """Return the chosen rows as an HTML table, for browsers without JavaScript and for printing."""
    names = ["", "step", "rank", "tensor", "operator", "type and shape", "state"]
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
            statistics = table.statistics(number)
            numbers = (
                table.root_mean_square(number),
                *((None, None) if statistics is None else (statistics.max, statistics.min)),
            )
        cells += ["" if number is None else f"{number:.4g}" for number in numbers]
        shown = "".join(f"<td{_CELLS.get(column, '')}>{cell}</td>" for column, cell in enumerate(cells))
        lines.append(f"<tr>{shown}</tr>\n")
    if not lines:
        return "<p>No rows.</p>"
    head = "".join(f"<th>{name}</th>" for name in names)
    several = len(table.rows) > len(lines)
    note = f"<p class='soft'>The {len(lines)} of {len(table.rows)} rows to look at first.</p>" if several else ""
    body = "".join(lines)
    return f"{note}<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"


#: HTML attributes of cells by column number.
_CELLS = {3: " class=name", 4: " class=text", 5: " class=text"}


def _cell(value: Optional[int]) -> str:
    return "" if value is None else str(value)


def unmatched(alone: Sequence[str], unreadable: Sequence[tuple[str, str]], compared: bool) -> str:
    """Return the lists of unmatched and unreadable records as HTML.

    alone: a line for each unmatched record. unreadable: label and reason of each unreadable record.
    """
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
    further = f"<li>and {len(lines) - _MOST_NAMED} more</li>\n" if len(lines) > _MOST_NAMED else ""
    opened = " open" if len(lines) <= 20 else ""
    verb = title.replace("has", "have") if len(lines) > 1 else title
    summary = f"{counted(len(lines), 'record')} {verb}"
    return f"<details{opened}><summary>{summary}</summary><ul>\n{items}{further}</ul></details>\n"


def provenance(facts: Sequence[tuple[str, str]], left_out: Sequence[str]) -> str:
    """Return the facts about the page, and the list of omissions, as HTML."""
    notes = "".join(f"<li>{text(note)}</li>\n" for note in left_out)
    omissions = f"<h4>Left out</h4>\n<ul>\n{notes}</ul>\n" if notes else "<p class='soft'>Nothing was left out.</p>"
    return f"<h2>How this page was made</h2>\n{_facts(facts)}{omissions}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>\n" for name, value in facts)
    return f"<dl class='facts'>\n{lines}</dl>\n" if lines else ""
