"""The Python environment of the laboratory: build/venv-bench, from bench/requirements.txt. Needs nothing from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parent.parent / "build" / "venv-bench"


def enter() -> None:
    """Goes on as the same program in the environment, unless it is there already."""
    if Path(sys.prefix).resolve() == VENV.resolve():
        return
    python = VENV / "bin" / "python"
    if not python.exists():
        sys.exit(f"{sys.argv[0]}: no {VENV}: tools/bootstrap.sh bench makes it")
    os.execv(python, [str(python), *sys.argv])
