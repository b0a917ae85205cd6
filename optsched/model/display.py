"""How domain objects show themselves in a Python session and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def spread(values: Sequence[int]) -> str:
    """Return the least and the largest value as ``1–9``; ``1`` if they are the same."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def one_line(kind: str, name: str, facts: Mapping[str, str]) -> str:
    """Return ``<kind name: fact value, …>``; a fact without a value is left out."""
    listed = ", ".join(f"{fact} {value}" for fact, value in facts.items() if value)
    return f"<{' '.join(filter(None, (kind, name)))}: {listed}>"


def html_table(rows: Iterable[Mapping[str, str]]) -> str:
    """Return rows with the same columns as an HTML table, its text escaped."""
    import html  # noqa: PLC0415 - only a notebook needs it

    lines = list(rows)

    def cells(tag: str, texts: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    head = cells("th", lines[0]) if lines else ""
    return f"<table><thead>{head}</thead><tbody>{''.join(cells('td', line.values()) for line in lines)}</tbody></table>"
