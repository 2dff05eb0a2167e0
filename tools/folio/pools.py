"""Programs whose small objects do not come from malloc: on any allocator most of their memory stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def own_pools(program: str | Path, environment: Mapping[str, str]) -> str:
    """What to do about it; empty where the program is not known to have any."""
    if not re.fullmatch(r"python(\d[\d.]*)?", Path(program).name):
        return ""
    if environment.get("PYTHONMALLOC", "").startswith("malloc"):
        return ""
    return "Python keeps small objects in pools of its own; PYTHONMALLOC=malloc puts them on Folio."
