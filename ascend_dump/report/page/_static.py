"""What a page says without its script: verdict, findings, the first rows, what was not looked at, how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as markup_escape
from typing import Optional

from ascend_dump.report.page._content import STATES, PageContent, PageFinding, PageRow
from ascend_dump.report.tables import counted, escape_lines

__all__ = ["FIRST_ROWS", "findings", "first_rows", "made", "text", "unmatched", "verdict"]

#: Rows that are readable without the script, and lines of what has no partner.
FIRST_ROWS = 40
_MOST_NAMED = 200
#: Findings that are open; the others are folded.
_OPEN = 3
_LONGEST = 12_000
_FINE = {"equal", "noise", "nothing found"}
_OPEN_VERDICTS = {"undecided", "unmatched", "no values"}


def text(value: object) -> str:
    """Text for a page: nothing in it is markup, and characters that draw nothing are spelled out."""
    found = str(value)
    if len(found) > _LONGEST:
        found = f"{found[:_LONGEST]}… ({len(found)} characters)"
    return markup_escape(escape_lines(found))


def verdict(content: PageContent, counts: Sequence[tuple[int, int]]) -> str:
    """counts: number of a state and of its rows."""
    kind = "fine" if content.verdict in _FINE else "open" if content.verdict in _OPEN_VERDICTS else "wrong"
    sign = next((state.sign for state in STATES if state.name == content.verdict), "▲")
    told = ", ".join(f"{count} {STATES[number].name}" for number, count in counts)
    command = f"<p>Run next:</p>\n<code class='command'>{text(content.command)}</code>" if content.command else ""
    return (
        f"<div class='state-{kind}'><span class='badge'>{sign} {text(content.verdict)}</span>"
        f"<span class='counts'>{text(told)}</span>\n"
        f"<p class='sentence'>{text(content.sentence)}</p>\n{_facts(content.facts)}{command}</div>"
    )


def findings(content: PageContent, numbers: Sequence[Optional[int]]) -> str:
    """numbers: of the row where each finding was seen, None where it is not on the page."""
    what = "Origins" if content.compared else "Suspects"
    if not content.findings:
        none = "No difference has an origin of its own." if content.compared else "No rule names a suspect."
        return f"<h2>{what}</h2>\n<p class='soft'>{none}</p>"
    shown = [_finding(one, number) for one, number in zip(content.findings, numbers)]
    rest = ""
    if len(shown) > _OPEN:
        rest = f"<details><summary>and {len(shown) - _OPEN} more</summary>\n{''.join(shown[_OPEN:])}</details>"
    return f"<h2>{what} <span class='soft'>{len(shown)}</span></h2>\n{''.join(shown[:_OPEN])}{rest}"


def _finding(one: PageFinding, number: Optional[int]) -> str:
    button = "" if number is None else f"<button type='button' class='go' data-row='{number}' hidden>Show</button>"
    return (
        f"<article class='finding'><h3><span class='name'>{text(one.title)}</span>{button}</h3>\n"
        f"{_facts(one.lines)}</article>\n"
    )


def first_rows(rows: Sequence[PageRow], states: Sequence[int], chosen: Iterable[int], compared: bool) -> str:
    """A table of some rows, for browsers without scripts and for paper."""
    names = ["", "step", "rank", "tensor", "operator", "type and shape", "found"]
    names += ["rel. error", "max |d|", "reason"] if compared else []
    lines = []
    for number in chosen:
        row = rows[number]
        record = row.record
        state = STATES[states[number]]
        shape = "" if record.shape is None else f"[{', '.join(map(str, record.shape))}]"
        cells: list[object] = [state.sign, record.step, record.rank, record.label, record.op_type]
        cells += [f"{record.dtype or ''}{shape}", state.name]
        if compared:
            error = row.error
            cells += ["" if error is None else f"{error.rel_l2:.4g}", "" if error is None else f"{error.max_abs:.4g}"]
            cells += [row.reason]
        shown = "".join(
            f"<td{' class=name' if at == 3 else ''}>{'' if cell is None else text(cell)}</td>"
            for at, cell in enumerate(cells)
        )
        lines.append(f"<tr>{shown}</tr>\n")
    if not lines:
        return "<p>No rows.</p>"
    head = "".join(f"<th>{name}</th>" for name in names)
    more = len(rows) - len(lines)
    note = f"<p class='soft'>The first {len(lines)} of {len(rows)}, those to look at first.</p>" if more else ""
    return (
        f"{note}<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>\n{''.join(lines)}</tbody></table></div>"
    )


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
