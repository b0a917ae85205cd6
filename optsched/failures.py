"""Exceptions that do not end a run, reported on one line with their place."""

from __future__ import annotations

import traceback

from optsched.model.errors import printable

FAILURES = (Exception, SystemExit)
"""Exceptions of a method, a policy or a plug-in that end only that part; Ctrl-C ends the run."""
_LONGEST = 300


class ReportedFailureError(Exception):
    """A failure whose message says what happened and where."""


def failure_text(error: BaseException, package: str | None = None) -> str:
    """Describe an exception on one line: its class, its message, and the place that raised it.

    Parameters
    ----------
    error
        The exception. The message of a `ReportedFailureError` is complete.
    package
        Top-level package whose innermost line is named, such as that of a policy; None for the innermost line of all,
        which is also named if the package has no part in it.
    """
    message = printable(" ".join(str(error).split()))
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    if isinstance(error, ReportedFailureError):
        return message
    name, place = type(error).__name__, raised_at(error, package) or raised_at(error)
    return (f"{name}: {message}" if message else name) + (f" ({place})" if place else "")


def raised_at(error: BaseException, package: str | None = None) -> str | None:
    """Return ``file:line`` of the innermost line that raised it; None if none of the package did, or none is known."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if package in {None, str(frame.f_globals.get("__name__")).partition(".")[0]}
    ]
    return "{}:{}".format(*frames[-1]) if frames else None
