"""unittest for modules that are told where things lie."""

from __future__ import annotations

import argparse
import sys
import unittest
from pathlib import Path
from typing import Any


def main(module: dict[str, Any], *names: str) -> None:
    """Sets the module's constant NAME from --name PATH, for each; what else is on the command line is unittest's."""
    parser = argparse.ArgumentParser(description=module["__doc__"])
    for name in names:
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    module.update(vars(arguments))
    unittest.main(argv=[sys.argv[0], *rest])
