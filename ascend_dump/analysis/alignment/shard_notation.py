"""The notation of `shards=`: the split of a tensor over ranks, if the dump does not record it.

*.up/addmm_0.output.0 = shard 1             each rank has a part along axis 1
*.qkv/mm_0.output.0 = shard 2 of 3 blocks   the same, within each of three equal blocks of that axis
*.down/mm_0.output.0 = partial sum          each rank has one term of a sum
*.norm/*.output.* = replicate               each rank has the whole tensor
*.up/*.output.0 = 2x4: replicate, shard 1   a mesh of ranks: one word for each of its dimensions
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Optional, Union

from ascend_dump.common.patterns import text_matcher
from ascend_dump.dump_format import Placement, ranks_text
from ascend_dump.errors import ConfigError
from ascend_dump.reading import Record

__all__ = ["ShardLayout", "ShardLayouts", "ShardSource", "shards_of"]

ShardSource = Union[Mapping[str, str], Iterable[str], None]

_MESH = re.compile(r"(\d{1,6}(?:x\d{1,6}){0,7})\s*:\s*(.*)", re.ASCII | re.DOTALL)
_AXIS = re.compile(r"replicate|partial sum|partial avg|shard \d{1,2}(?: of [1-9] blocks)?", re.ASCII)
_BLOCKS = re.compile(r"shard (\d{1,2}) of (\d) blocks", re.ASCII)
_HINT = (
    'expected GLOB=LAYOUT, such as "*.up/mm_0.output.0=shard 1": a glob of tensors, each named OPERATOR.output.INDEX '
    "or OPERATOR.input.INDEX, and replicate, shard AXIS, shard AXIS of N blocks, partial sum or partial avg; for a "
    'mesh of ranks one of these for each dimension, such as "2x4: replicate, shard 1"'
)


class ShardLayout(NamedTuple):
    """One layout that the user gave.

    text     the text that the user gave
    matches  returns True for the label of a tensor that has this layout
    mesh     sizes of the dimensions of the mesh of ranks; empty if all ranks form one dimension
    axes     for each dimension: "replicate", "partial sum", "partial avg" or "shard AXIS"
    blocks   number of equal blocks of the axis that are split one by one
    """

    text: str
    matches: Callable[[str], bool]
    mesh: tuple[int, ...]
    axes: tuple[str, ...]
    blocks: int = 1

    def placement(self, record: Record, ranks: Sequence[int], shape: Sequence[int]) -> Placement:
        """Return the placement of a whole tensor of this shape on the ranks, as a dump would record it.

        Raises ConfigError if the mesh has another number of ranks.
        """
        mesh = self.mesh or (len(ranks),)
        if math.prod(mesh) != len(ranks):
            raise ConfigError(
                f"shards {self.text!r}: the mesh has {math.prod(mesh)} ranks, but {len(ranks)} have {record.label}",
                hint="write a mesh of as many ranks, or compare dumps of all of them",
            )
        return Placement(ranks_text(ranks), mesh, self.axes, shape=tuple(shape))

    def mismatch(self, record: Record, reason: str) -> ConfigError:
        """Return the error to raise for a tensor whose shape contradicts the layout."""
        return ConfigError(
            f"shards {self.text!r} do not fit {record.label} of rank {record.rank}, which has shape "
            f"{list(record.shape or ())}: {reason}",
            hint="correct the axis, or write a glob that leaves this tensor out; names are those of `ascend-dump ls`",
        )


class ShardLayouts(tuple[ShardLayout, ...]):
    """All layouts that the user gave. If several match a tensor, the last of them counts."""

    __slots__ = ()

    def of(self, record: Record) -> Optional[ShardLayout]:
        return next((layout for layout in reversed(self) if layout.matches(record.label)), None)


def shards_of(source: ShardSource) -> ShardLayouts:
    """Parse a mapping of globs to layouts, or texts GLOB=LAYOUT. Raises ConfigError for anything else.

    >>> shards_of({"*.up/*.output.0": "2x4: replicate, shard 1"})[0].axes
    ('replicate', 'shard 1')
    """
    if source is None:
        return ShardLayouts()
    if isinstance(source, str):
        source = (source,)
    texts = [f"{glob}={layout}" for glob, layout in source.items()] if isinstance(source, Mapping) else list(source)
    return ShardLayouts(map(_read, texts))


def _read(text: str) -> ShardLayout:
    glob, equals, layout = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    if not equals or not glob.strip():
        raise ConfigError(f"shards {text!r} have no layout", hint=_HINT)
    meshed = _MESH.fullmatch(layout.strip())
    mesh = tuple(map(int, meshed[1].split("x"))) if meshed is not None else ()
    axes = [" ".join(axis.split()) for axis in (layout if meshed is None else meshed[2]).split(",")]
    wrong = [axis for axis in axes if not _AXIS.fullmatch(axis)]
    if wrong:
        raise ConfigError(f"shards {text!r}: {wrong[0]!r} is no layout", hint=_HINT)
    if len(axes) != (len(mesh) or 1) or 0 in mesh:
        raise ConfigError(f"shards {text!r}: {len(axes)} layouts for a mesh of {len(mesh) or 1} dimensions", hint=_HINT)
    cut = [match for match in map(_BLOCKS.fullmatch, axes) if match is not None]
    if cut and len(axes) > 1:
        raise ConfigError(f"shards {text!r}: blocks are not supported in a mesh of several dimensions", hint=_HINT)
    named = tuple(f"shard {match[1]}" for match in cut) or tuple(axes)
    return ShardLayout(text, text_matcher(glob.strip()), mesh, named, int(cut[0][2]) if cut else 1)
