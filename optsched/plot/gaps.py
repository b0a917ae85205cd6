"""What results on the same instances say together: best values, bounds, and the gap of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optsched.model.documents import instance_sha256
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result


@dataclass(frozen=True)
class GapRange:
    """Where the gap of a value to the optimum lies: (value − best known) / value to (value − bound) / value."""

    least: float
    most: float

    @property
    def is_open(self) -> bool:
        """Whether the optimum is not known."""
        return self.least < self.most


class Reference:
    """The best value and the best bound that results have for each instance and objective.

    Bounds of restricted classes of schedules do not count: other schedules may be better. Values do.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._hashes: dict[int, tuple[Instance, str]] = {}
        self._values: dict[tuple[str, Objective], int] = {}
        self._bounds: dict[tuple[str, Objective], int] = {}
        for result in results:
            key = self._key(result)
            if result.value is not None:
                self._values[key] = min(result.value, self._values.get(key, result.value))
            if result.bound is not None and result.restrictions == Restrictions():
                self._bounds[key] = max(result.bound, self._bounds.get(key, 0))

    def best(self, result: Result) -> int | None:
        """Return the best value for the instance and objective of a result."""
        return self._values.get(self._key(result))

    def bound(self, result: Result) -> int | None:
        """Return the best bound for the instance and objective of a result."""
        return self._bounds.get(self._key(result))

    def gap(self, result: Result) -> GapRange | None:
        """Return where the gap of a result lies; None without a value or a bound."""
        most = gap(result.value, self.bound(result))
        least = gap(result.value, self.best(result))
        return None if least is None or most is None else GapRange(min(least, most), most)

    def _key(self, result: Result) -> tuple[str, Objective]:
        # Many results share an instance, of which the hash takes long; kept, so that its id is not given again.
        kept = self._hashes.get(id(result.instance))
        if kept is None:
            kept = self._hashes[id(result.instance)] = result.instance, instance_sha256(result.instance)
        return kept[1], result.objective
