"""What has been tried, in a folder: a database that several processes share, and files of what was found."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trial.tried import Tally

_STALE_S = 1800.0
"""A chunk that was begun longer ago and has not ended was killed."""


class Done(NamedTuple):
    """All that was tried of a sort."""

    chunks: int
    seconds: float
    counts: Counter[str]


class Store:
    """Chunks by sort and seed: begun, or done with what they counted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._found = folder / "found"
        self._base = sqlite3.connect(folder / "trial.sqlite", timeout=60, isolation_level=None)
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS chunks (sort TEXT, seed INTEGER, begun REAL, seconds REAL, counts TEXT, "
            "PRIMARY KEY (sort, seed))"
        )

    def claim(self, shares: Mapping[str, int]) -> tuple[str, int] | None:
        """Take the next seed of the sort with the smallest part of its share begun; None if all have theirs."""
        now = time.time()
        self._base.execute("BEGIN IMMEDIATE")
        try:
            self._base.execute("DELETE FROM chunks WHERE counts IS NULL AND begun < ?", (now - _STALE_S,))
            begun = dict(self._base.execute("SELECT sort, COUNT(*) FROM chunks GROUP BY sort"))
            left = [(begun.get(sort, 0) / share, sort) for sort, share in shares.items() if share]
            part, sort = min(left, default=(1.0, ""))
            if part >= 1:
                return None
            taken = {seed for (seed,) in self._base.execute("SELECT seed FROM chunks WHERE sort = ?", (sort,))}
            seed = next(number for number in range(len(taken) + 1) if number not in taken)
            self._base.execute("INSERT INTO chunks VALUES (?, ?, ?, NULL, NULL)", (sort, seed, now))
        finally:
            self._base.execute("COMMIT")
        return sort, seed

    def finish(self, sort: str, seed: int, seconds: float, tally: Tally) -> None:
        """Note what a chunk counted, and write what it found to files."""
        for number, (name, content) in enumerate(tally.found):
            self._found.mkdir(exist_ok=True)
            document = {"sort": sort, "seed": seed} | content
            path = self._found / f"{name}-{sort.replace(', ', '-')}-{seed}-{number}.json".replace(" ", "_")
            path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        self._base.execute(
            "UPDATE chunks SET seconds = ?, counts = ? WHERE sort = ? AND seed = ?",
            (seconds, json.dumps(tally.counts), sort, seed),
        )

    def done(self) -> dict[str, Done]:
        """Return what was done of every sort."""
        found: dict[str, Done] = {}
        for sort, seconds, counts in self._base.execute(
            "SELECT sort, seconds, counts FROM chunks WHERE counts IS NOT NULL"
        ):
            before = found.get(sort, Done(0, 0.0, Counter()))
            before.counts.update(json.loads(counts))
            found[sort] = Done(before.chunks + 1, before.seconds + seconds, before.counts)
        return found
