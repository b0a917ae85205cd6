"""The process in which one method runs on one instance; `optsched.study.benchmark` starts it.

It reads a task from standard input, a JSON object on one line. It prints ``{"point": [seconds, incumbent, bound]}`` on
a line whenever one of the two improves, and last ``{"result": document}``. When standard input ends, whoever asked is
gone, and the process ends with all that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.catalogue import FORMULATION_GROUP, BrokenEntryError, entries, lookup
from optsched.methods.checked import DefectFoundError
from optsched.methods.plan import AUTO
from optsched.methods.solve import solve
from optsched.model.documents import parse_instance, result_document
from optsched.model.errors import InputError
from optsched.solvers.formulation import ProgressEvent


class _Reporter:
    """Prints incumbent and bound when one improves; solvers call it from threads of their own."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._known: tuple[int | None, int | None] = (None, None)
        self._started = time.perf_counter()

    def start(self) -> None:
        self._started = time.perf_counter()

    def __call__(self, event: ProgressEvent) -> None:
        elapsed = time.perf_counter() - self._started
        with self._lock:
            incumbents = [value for value in (self._known[0], event.incumbent) if value is not None]
            bounds = [value for value in (self._known[1], event.bound) if value is not None]
            now = (min(incumbents, default=None), max(bounds, default=None))
            if now != self._known:
                self._known = now
                self._print({"point": [round(elapsed, 4), *now]})

    def finish(self, document: dict[str, Any]) -> None:
        with self._lock:
            self._print({"result": document})

    def _print(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Carry out the task."""
    # A shell's background jobs ignore interrupts; the benchmark ends an overrun by one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Solvers may print; only the reporter prints to what the benchmark reads.
    reporter = _Reporter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    instance = parse_instance(json.dumps(task["instance"]).encode(), cost_model)
    method = task["method"]
    try:
        for name in entries(FORMULATION_GROUP) if method == AUTO else (method,):
            with suppress(BrokenEntryError):  # the search says so
                lookup(FORMULATION_GROUP, name, "method")  # importing solvers is not part of the time
        reporter.start()
        result = solve(
            instance,
            task["objective"],
            method=method,
            time_limit=task["time_limit_s"],
            workers=task["workers"],
            seed=task["seed"],
            progress=reporter,
        )
    except InputError as error:
        sys.exit(str(error))
    except DefectFoundError as found:
        result = found.result  # its message names the defects
    reporter.finish(result_document(result))


if __name__ == "__main__":
    main()
