"""Instances on the machines that options name."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cli.options import on_profile
from optsched.model.cluster import CacheMode
from optsched.model.instance import Instance
from optsched.study.setups import shaped


def on_machines(instance: Instance, profile: str | None, machines: int | None, caches: Sequence[str]) -> Instance:
    """Return an instance on the machines that ``--profile``, ``--machines`` and ``--cache`` name.

    Without them it stays as it is; if evictors need some cache, and it has none, its machines cache all blocks.
    """
    found = on_profile(instance, profile)
    return shaped(found, machines, CacheMode.ALL if caches and not found.is_cached else None)
