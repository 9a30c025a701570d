"""All programs in one process, since importing torchair takes longer than most of them.

python everything.py VERSION        ("fake" for the fake torchair) -> trees/, assignments/, models/, document/
"""

from __future__ import annotations

import os
import sys

import assign
import document
import dump_script
import run_models


def main(version: str) -> None:
    programs = {"trees": dump_script, "assignments": assign}
    if version != "fake":
        programs.update(models=run_models, document=document)
    root = os.getcwd()
    for name, program in programs.items():
        os.mkdir(name)
        os.chdir(name)
        program.main(version)
        os.chdir(root)


if __name__ == "__main__":
    main(sys.argv[1])
