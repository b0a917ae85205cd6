"""Sections of Markdown files between marks."""

from __future__ import annotations

from optsched.model.errors import InputError, Said


def replace_section(text: str, name: str, body: str) -> str:
    """Put ``body`` between the marks of a section of a Markdown file; a new section goes to the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{body.strip()}\n{end}"
    head, found, rest = text.partition(begin)
    if not found:
        return f"{text.rstrip()}\n\n{section}\n".lstrip()
    _, ended, tail = rest.partition(end)
    if not ended:
        raise InputError("", Said(f"{begin} without {end}"), "both marks of a section")
    return head + section + tail
