"""Write what Sphinx reads: lay_out.py DIRECTORY copies the pages there, and names what the reference describes.

`ascend-dump help nan` and AD303 become links in the copies: pages that a terminal shows have none.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

from ascend_dump.cli.shared.help_texts import TOPICS

REPOSITORY = Path(__file__).parents[2]

#: The public modules of `ascend-dump help interface`. A name that several of them have is described with the first.
MODULES = re.findall(
    r"^\| `(\S+)` \|", (REPOSITORY / "ascend_dump/pages/topics/interface.md").read_text(), re.MULTILINE
)

#: What the public names take and give without being public names themselves, and the module that describes each.
MORE = {
    "ascend_dump": (
        "capturing._types.CaptureSettings",
        "converting.push.PushedFile",
        "analysis.quantised.measures.ErrorNumbers",
        "analysis.quantised.measures.Outlier",
        "analysis.triage.Cause",
        "analysis.triage.TriageRound",
        "report.findings.Finding",
    ),
    "ascend_dump.reading": ("dump_format.Arguments",),
    "ascend_dump.analysis.compare": ("analysis.judging.verdict.Noise",),
    "ascend_dump.analysis.weights": (
        "reading.weights._open.Weights",
        "reading.weights._tensor.WeightTensor",
    ),
    "ascend_dump.analysis.suspects": ("analysis.suspects.repeated_steps.RepeatedStep",),
    "ascend_dump.fakes": ("fakes.device.npu.Npu", "fakes.device._faults.Faults"),
}

INDEX = """# ascend_dump

```{{include}} README.md
:start-line: 2
```
{trees}"""

TREE = """
```{{toctree}}
:caption: {caption}
:maxdepth: 1
:hidden:
{pages}
```
"""

ERRORS = """# Error codes

`ascend-dump explain AD303` prints one.

```{{toctree}}
:maxdepth: 1
{pages}
```
"""


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    pages = REPOSITORY / "ascend_dump" / "pages"
    examples = REPOSITORY / "examples"
    for page in (*pages.rglob("*.md"), *REPOSITORY.glob("*.md"), *examples.rglob("README.md")):
        to = out / page.relative_to(pages if pages in page.parents else REPOSITORY)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(linked(page.read_text(), "../" * (len(to.relative_to(out).parts) - 1)))
    for picture in (*examples.rglob("*.png"), *examples.rglob("*.svg")):
        shutil.copy(picture, out / "examples" / picture.parent.name)
    known: set[int] = set()
    (out / "api").mkdir()
    for name in MODULES:
        (out / "api" / f"{name}.md").write_text(reference(name, known))
    trees = {
        **{task: [f"topics/{name}" for name in names] for task, names in TOPICS.items()},
        "中文": ["README.zh", *(f"topics/zh/{page.stem}" for page in sorted((pages / "topics" / "zh").glob("*.md")))],
        "Examples": [f"examples/{page.parent.name}/README" for page in sorted(examples.rglob("README.md"))],
        "Python": [f"api/{name}" for name in MODULES],
        "More": ["errors", "CHANGELOG", "CONTRIBUTING", "SECURITY"],
    }
    text = "".join(TREE.format(caption=caption, pages="\n".join(names)) for caption, names in trees.items())
    (out / "index.md").write_text(INDEX.format(trees=text))
    codes = "\n".join(page.stem for page in sorted(pages.glob("AD*.md")))
    (out / "errors.md").write_text(ERRORS.format(pages=codes))


def linked(text: str, root: str) -> str:
    """A page with links to the pages that it names. root: the way from it to the first folder.

    >>> linked("see `ascend-dump help nan`, (AD303)", "../")
    'see [`ascend-dump help nan`](../topics/nan.md), ([AD303](../AD303.md))'
    """
    text = re.sub(r"`ascend-dump help ([a-z-]+)`", rf"[`ascend-dump help \1`]({root}topics/\1.md)", text)
    # Not in code, and not in the title of its own page.
    return re.sub(r"(?<=[(, ])(AD\d{3})(?=[), .;])(?![^`\n]*`[^`\n]*$)", rf"[\1]({root}\1.md)", text)


def reference(name: str, known: set[int]) -> str:
    """The page of a module. known: what was described before, by id."""
    module = import_module(name)
    public = getattr(module, "__all__", None) or [one for one in vars(module) if not one.startswith("_")]
    lines = [f"# `{name}`", "", "```{eval-rst}", f".. automodule:: {name}", "   :no-members:", ""]
    for path in (*(f"{name}.{one}" for one in public), *(f"ascend_dump.{more}" for more in MORE.get(name, ()))):
        home, _, one = path.rpartition(".")
        found = getattr(import_module(home), one)
        if not callable(found) or id(found) in known:
            continue
        known.add(id(found))
        lines.append(f".. auto{'class' if isinstance(found, type) else 'function'}:: {path}")
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
