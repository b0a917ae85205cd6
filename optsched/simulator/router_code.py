"""Whose exception it is that a router's code lets through."""

from __future__ import annotations

import traceback
from types import TracebackType

from optsched.failures import FAILURES, ReportedFailureError, failure_text
from optsched.routers.router import UnsuitableError
from optsched.simulator.replica import PolicyFailureError


class RouterCrashError(ReportedFailureError):
    """A router's code raises what no router should, or does not suit the machines; the message says what, and where."""


class RouterCode:
    """Runs a router's code: ``with`` it, whatever that raises becomes a `RouterCrashError`.

    A router that looks at a machine lets its policy run up to now, and what that raises is not the router's.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, FAILURES) or isinstance(error, PolicyFailureError):
            return
        if isinstance(error, UnsuitableError):
            raise RouterCrashError(str(error)) from error
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(trace)]
        if "optsched.simulator.engine" in modules:
            return
        # The first frame is the simulator's, and the next one that is not ours is the router's.
        packages = (module.partition(".")[0] for module in modules)
        package = next((package for package in packages if package != "optsched"), None)
        raise RouterCrashError(f"raised {failure_text(error, package)}") from error
