"""`ascend-dump help`: the pages of topics, and that what they say can be typed."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.cli.shared.help_texts import TOPICS, topics


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")


def shell(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def test_topics_are_listed_and_shown() -> None:
    code, out, _ = shell("help")
    assert code == Exit.OK
    for one in topics():
        assert any(line.split() == [one.code, *one.title.split()] for line in out.splitlines())
        assert shell("help", one.code) == (Exit.OK, one.text.rstrip() + "\n", "")
    pages = json.loads(shell("help", "--json")[1])["pages"]
    assert [page["code"] for page in pages] == [one.code for one in topics()]


def test_topics_are_listed_by_task() -> None:
    lines = shell("help")[1].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed == [name for names in TOPICS.values() for name in names]
    assert [line.rstrip(":") for line in lines if line.endswith(":")] == list(TOPICS)
    pages = Path(ascend_dump.__file__).parent / "pages" / "topics"
    assert sorted(listed) == sorted(page.stem for page in pages.glob("*.md"))


def test_a_verb_has_its_own_help() -> None:
    assert shell("help", "stats")[1].rstrip() == shell("stats", "--help")[1].rstrip()


def test_an_unknown_topic_names_the_nearest() -> None:
    code, _, err = shell("help", "trainer")
    assert (code, "did you mean 'trainers'?" in err) == (Exit.USAGE, True)


TRANSLATED = sorted((Path(ascend_dump.__file__).parent / "pages" / "topics" / "zh").glob("*.md"))


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.stem)
def test_a_translation_has_the_headings_commands_and_codes_of_the_page(page: Path) -> None:
    english, chinese = (path.read_text(encoding="utf-8") for path in (page.parents[1] / page.name, page))
    for pattern in (r"^#+(?= )", r"^    .*$", r"\bAD\d{3}\b", r"(?<=`)--[a-z][a-z-]+", r"ascend-dump help [a-z]+"):
        found = [re.findall(pattern, text, re.MULTILINE) for text in (english, chinese)]
        assert sorted(found[0]) == sorted(found[1]), pattern
    assert chinese.startswith(f"# {page.stem}: ")
    assert max(map(len, chinese.splitlines())) <= max(140, *map(len, english.splitlines()))


def test_the_language_is_that_of_the_locale_or_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    english, chinese = (shell("help", "nan", "--lang", language)[1] for language in ("en", "zh"))
    assert english != chinese
    for locale, expected in (("zh_CN.UTF-8", chinese), ("en_US.UTF-8", english), ("C", english), ("", english)):
        monkeypatch.setenv("LC_ALL", locale)
        monkeypatch.delenv("LC_MESSAGES", raising=False)
        monkeypatch.delenv("LANG", raising=False)
        assert shell("help", "nan")[1] == expected
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert shell("help", "files")[1] == shell("help", "files", "--lang", "en")[1], "it is not translated"
    code, _, err = shell("help", "nan", "--lang", "fr")
    assert (code, "expected one of en, zh" in err) == (Exit.USAGE, True)


def commands() -> Iterator[str]:
    for one in topics():
        assert one.text.startswith(f"# {one.code}: ")
        yield from (line.strip() for line in one.text.splitlines() if line.startswith("    ascend-dump "))


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_every_command_can_be_typed(line: str) -> None:
    """Each verb takes the options that a page gives it; nothing runs."""
    _, verb, *words = shlex.split(line)
    # The help is shown once all options are taken apart.
    assert shell(verb, "--help", *words)[0] == Exit.OK
    assert shell(verb, "--help", "--no-such-option", *words)[0] == Exit.USAGE
