"""Read every fixture, write it again, and read mutants: run with one version of protobuf. Prints JSON."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import google.protobuf

from ascend_dump import ReadError
from ascend_dump.native.cann.dump_file import payload, read_header, write, write_nano


def main() -> None:
    fixtures = sorted(Path(sys.argv[1]).iterdir())
    scratch = Path(tempfile.mkdtemp()) / "copy.copy.1.1.1589195081588018"
    headers = {}
    different = []
    for path in fixtures:
        dump = read_header(path)
        headers[path.name] = repr(dump._replace(path=path.name))
        pairs = [(tensor, payload(dump, tensor) if tensor.length else None) for tensor in dump.tensors]
        if dump.nano:
            write_nano(scratch, pairs)
        else:
            parts = {name: [payload(dump, entry) for entry in getattr(dump, name)] for name in ("buffers", "spaces")}
            fields = {"op_name": dump.op_name, "dump_time": dump.dump_time, "attrs": dump.attrs}
            write(scratch, pairs, host=True, **fields, **parts)
        if scratch.read_bytes() != path.read_bytes():
            different.append(path.name)
    mutants = mutate(fixtures, scratch)
    found = {"version": google.protobuf.__version__, "headers": headers, "different": different, "mutants": mutants}
    print(json.dumps(found))


def mutate(fixtures: list[Path], scratch: Path) -> dict[str, int]:
    """How many mutants are read and how many refused; anything but a typed error ends the program."""
    rng = random.Random(0)
    counts = {"read": 0, "refused": 0}
    for path in fixtures * 20:
        content = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 3)):
            content[8 + rng.randrange(min(len(content) - 8, 100))] = rng.randrange(256)
        scratch.write_bytes(content)
        try:
            read_header(scratch)
            counts["read"] += 1
        except ReadError:
            counts["refused"] += 1
    return counts


if __name__ == "__main__":
    main()
