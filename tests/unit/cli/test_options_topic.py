"""`ascend-dump help options`: every option of each adapter, as the adapter's own table has it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ascend_dump_acl import OPTIONS as ACL
from ascend_dump_torch import OPTIONS as TORCH
from ascend_dump_torch_npu import OPTIONS as TORCH_NPU

from ascend_dump.cli import Exit, main
from ascend_dump.cli.shared.help_texts import topic_text
from ascend_dump.native.cann.config.build import OPTIONS as CANN
from ascend_dump.native.languages import languages
from ascend_dump.native.mindspore.config.build import OPTIONS as MINDSPORE
from ascend_dump.native.mindspore.runtime import RUNTIMES, Runtime
from ascend_dump.native.tensorflow.options import OPTIONS as TENSORFLOW
from ascend_dump.native.torchair.config.build import OPTIONS as TORCHAIR

TABLES: Mapping[str, Mapping[str, str]] = {
    "PyTorch on the host": {name: text for name, text in TORCH.items() if not name.startswith("outline")},
    "TensorFlow": TENSORFLOW,
    "CANN's dump": CANN,
    "acl": ACL,
    "torchair": TORCHAIR,
    "torch_npu": TORCH_NPU,
    "MindSpore": MINDSPORE,
}


def table_of(options: Mapping[str, str]) -> str:
    return "\n".join(
        ["| option | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in options.items())]
    )


@pytest.mark.parametrize("heading", TABLES)
def test_the_page_has_the_table_of_the_adapter(heading: str) -> None:
    _, found, section = topic_text("options").text.partition(f"\n## {heading}\n")
    assert found, "the section is missing"
    assert table_of(TABLES[heading]) in section.partition("\n## ")[0]


def test_the_page_has_no_other_sections() -> None:
    headings = [line[3:] for line in topic_text("options").text.splitlines() if line.startswith("## ")]
    assert headings == list(TABLES)


def test_the_help_of_check_lists_where_mindspore_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == Exit.OK
    text = " ".join(capsys.readouterr().out.split())
    for name in languages()["mindspore"].runtimes:
        assert name in text


@pytest.mark.parametrize(
    ("name", "same"),
    [("O0", "ascend"), ("O1", "ascend"), ("O2", "ascend-o2"), ("o2", "ascend-o2"), *zip(RUNTIMES, RUNTIMES)],
)
def test_the_names_of_jit_levels_are_runtimes(name: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Runtime.named(name).name == same
    file_of = ["config", "--for", "mindspore", "--path", "dumps"]
    code = main([*file_of, "--options", f"on={name}", "--json"])
    written = capsys.readouterr().out
    assert main([*file_of, "--options", f"on={same}", "--json"]) == code != Exit.INTERNAL
    assert capsys.readouterr().out == written
