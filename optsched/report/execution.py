"""An execution in words and small tables, for the terminal."""

from __future__ import annotations

from optsched.hardware.compare.batches import Execution
from optsched.report.formats import simple_table


def execution_text(execution: Execution, width: int) -> str:
    """Describe how far measured batch times and request metrics are from the predicted ones."""
    engine, batches = execution.engine, execution.followed.batches
    opening = (
        f"{execution.method} on {execution.instance.name}, {execution.decided}: {len(batches)} batches, "
        f"{execution.followed.schedule.evictions} evictions\n"
        f"{engine['shape']['name']} ({engine['dtype']}) on {engine['device']}\n"
    )
    errors = [
        [name, str(error.batches)]
        + [f"{100 * part:.1f}" for part in (error.mean, error.p50, error.p95, error.worst)]
        + [f"{100 * error.total:+.1f}"]
        for name, error in execution.batch_errors().items()
    ]
    headers = ["batches", "number", "mean", "p50", "p95", "worst", "all together"]
    about = "Error of predicted batch times, |predicted − measured| / measured in %; all together: with sign.\n"
    requests = [
        [name, f"{predicted / 1e9:.3f}", f"{measured / 1e9:.3f}", _signed(predicted, measured)]
        for name, (predicted, measured) in execution.request_metrics().items()
    ]
    seen = simple_table(["requests", "predicted (ms)", "measured (ms)", "error (%)"], requests, width)
    return "\n".join([opening, simple_table(headers, errors, width) + about, seen])


def _signed(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f}" if measured else "–"
