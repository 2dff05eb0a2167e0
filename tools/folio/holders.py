"""Who holds an object: the nearest object above it that has a type, or the root, on the way by which it was reached.

A list or an array without a type is passed over: what holds it holds its elements. There may be other ways to an
object; this is the one that was found first, and variables come before stacks.
"""

from __future__ import annotations

import numpy as np

from folio.reach import NOT_REACHED
from folio.survey import Survey

NOBODY = "nothing that was found"


class Holders:
    """`found` must have parents and types."""

    def __init__(self, found: Survey) -> None:
        assert found.reach.parents is not None
        assert found.codes is not None
        assert found.types is not None
        self.found = found
        self.parents, self.codes = found.reach.parents, found.codes
        passed = (self.codes == 0) & (self.parents >= 0)
        up = np.where(passed, self.parents, np.arange(len(passed)))
        while True:  # each time twice as far
            further = up[up]
            if (further == up).all():
                break
            up = further
        self.up = up
        self.roots = np.concatenate([np.zeros(0, dtype=np.int64), *found.reach.roots])

    def of(self, numbers: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """For each object the place of its holder's name in the list."""
        names: dict[str, int] = {}
        found = np.zeros(len(numbers), dtype=np.int64)
        parent = self.parents[numbers]
        top = self.up[np.maximum(parent, 0)]
        typed = (parent >= 0) & (self.codes[top] > 0)
        last = np.where(parent >= 0, self.parents[top], parent)
        rooted = ~typed & (last <= -2) & (last != NOT_REACHED)
        none = ~typed & ~rooted
        assert self.found.types is not None
        type_names = self.found.types.names
        self._name(found, typed, self.codes[top], lambda code: type_names[code], names)
        addresses = self.roots[np.where(rooted, -2 - last, 0)] if len(self.roots) else np.zeros_like(last)
        self._name(found, rooted, addresses, self.found.root_name, names)
        self._name(found, none, np.zeros_like(last), lambda _: NOBODY, names)
        return found, list(names)

    @staticmethod
    def _name(found: np.ndarray, chosen: np.ndarray, keys: np.ndarray, name, names: dict[str, int]) -> None:
        each, inverse = np.unique(keys[chosen], return_inverse=True)
        places = [names.setdefault(name(int(key)), len(names)) for key in each]
        found[chosen] = np.array(places, dtype=np.int64)[inverse]
