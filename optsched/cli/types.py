"""Types of arguments and options: click's own, whose refusals say what `InputError` says of all wrong input."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, isnan
from typing import Any

import click

from optsched.model.errors import InputError, Said, one_of, shown


class _Folder(click.Path):
    """A folder to make or to write to."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        return value


FILE, FOLDER = click.Path(), _Folder()
"""What a shell completes; what is wrong with a file or a folder is said by what reads or writes it."""


def option_name(param: click.Parameter | None) -> str:
    """Return what users call an option or an argument."""
    assert param is not None, "click passes it for all that users type"
    return param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name


def typed(value: object) -> object:
    """Return text as it was typed, without quotes, if there is any."""
    return Said(shown(value)[1:-1]) if isinstance(value, str) and value.strip() else value


class Whole(click.IntRange):
    """An integer of a range, as `click.IntRange`."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer, or raise `InputError`."""
        try:
            found: int = super().convert(value, param, ctx)
        except click.BadParameter:
            low, high = self.min, self.max
            expected = f"an integer ≥ {low}" if high is None else f"an integer from {low} to {high}"
            raise InputError(option_name(param), typed(value), expected) from None
        return found


class Positive(click.FloatRange):
    """A number > 0, perhaps infinite, as `click.FloatRange`; or only a finite one."""

    name = "number"

    def __init__(self, *, finite: bool = False) -> None:
        super().__init__(0, inf if finite else None, min_open=True, max_open=finite)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or raise `InputError`."""
        try:
            found: float = super().convert(value, param, ctx)
            if isnan(found):
                self.fail("no number", param, ctx)
        except click.BadParameter:
            expected = "a finite number > 0" if self.max_open else "a number > 0"
            raise InputError(option_name(param), typed(value), expected) from None
        return found


class Exact(click.ParamType[Fraction]):
    """A number > 0, exactly as it is written; with ``within`` one from the first to the last of these."""

    name = "number"

    def __init__(self, within: tuple[int, int] | None = None) -> None:
        self._within = within

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the number, or raise `InputError`."""
        try:
            number = Fraction(value)
        except (ValueError, ZeroDivisionError):
            number = Fraction(0)
        least, most = self._within or (number, number)
        if number <= 0 or not least <= number <= most:
            expected = f"a number from {least} to {most}" if self._within else "a number > 0"
            raise InputError(option_name(param), typed(value), expected)
        return number


class OneOf(click.Choice[str]):
    """One of some names, as `click.Choice`; the refusal asks if one that is spelled like it is meant."""

    name = "name"

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__([str(each) for each in choices])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or raise `InputError`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise InputError(option_name(param), value, one_of(value, self.choices)) from None
