"""Stores as commands open them."""

from __future__ import annotations

from pathlib import Path

import click

from optsched.model.errors import InputError, Said, printable
from optsched.study.imported import import_folder
from optsched.study.store import FILE, Store


def open_store(path: Path, commit: str = "unknown") -> Store:
    """Open a store, which is made if it does not exist; what is refused in it is named on stderr."""

    def report(what: str, reason: str) -> None:
        _say(f"{path}: {what}: refused, computed again: {reason}")

    return Store(path, report=report, commit=commit)


def results_store(folder: Path, resume: bool, workers: int | None) -> Store:
    """Open the store of a folder of results; to resume, documents of earlier versions are taken over into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("", Said(error.strerror or str(error)), "a folder to write to", str(folder)) from None
    store = open_store(folder / FILE)
    found = import_folder(folder, store, workers, _report_document) if resume else None
    if found is not None and (found.taken or found.outdated):
        left = f", {found.outdated} made by other versions" if found.outdated else ""
        _say(f"{store.path}: {found.taken} results taken over from the documents in the folder{left}")
    return store


def _report_document(document: str, reason: str) -> None:
    _say(f"{document}: refused, computed again: {reason}")


def _say(message: str) -> None:
    click.echo(printable(f"optsched: {message}"), err=True)
