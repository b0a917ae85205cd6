"""Claims as expressions: read once, and evaluated for each case."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optsched.model.errors import InputError, Said, one_of
from optsched.study.hypotheses.interval import (
    Interval,
    Truth,
    conjunction,
    disjunction,
    greatest,
    least,
    negation,
)

Case = Mapping[str, Mapping[str, Interval]]
"""Side → what is known of it by name, ``value`` for its objective; the instance's features are the side ``""``."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Interval, Interval], Interval]] = MappingProxyType(
    {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
    }
)
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Interval, Interval], Truth]] = MappingProxyType(
    {
        ast.Lt: lambda a, b: a < b,
        ast.LtE: lambda a, b: a <= b,
        ast.Gt: lambda a, b: b < a,
        ast.GtE: lambda a, b: b <= a,
        ast.Eq: lambda a, b: a.equals(b),
        ast.NotEq: lambda a, b: negation(a.equals(b)),
    }
)
_FUNCTIONS = MappingProxyType({"min": least, "max": greatest})
MEAN = "mean"


@dataclass(frozen=True)
class Claim:
    """An expression over sides, such as ``1 - a / b <= 0.17`` or ``a.evictions == 0``.

    It has numbers, names, ``+ - * /``, comparisons, ``and or not``, ``min`` and ``max``. With ``mean(…)`` it is a claim
    about the mean over all cases, compared with a number.

    Parameters
    ----------
    text
        As it is written.
    tree
        As it is evaluated, without the mean.
    mean_of
        What the mean is of; None for a claim about each case.
    uses
        The names of each side that it uses, ``value`` for the side itself; those of features for the side ``""``.
    """

    text: str
    tree: ast.expr
    mean_of: ast.expr | None
    uses: Mapping[str, frozenset[str]]

    def holds(self, case: Case) -> Truth:
        """Return whether the claim holds in a case."""
        return _truth(self.tree, case)

    def quantity(self, case: Case) -> Interval:
        """Return what the mean is of."""
        assert self.mean_of is not None, "asked before"
        return _number(self.mean_of, case)

    def holds_of_mean(self, mean: Interval) -> Truth:
        """Return whether the claim holds of a mean."""
        return _truth(self.tree, {MEAN: {"value": mean}})


def read_claim(field: str, text: str, sides: Mapping[str, object], features: tuple[str, ...]) -> Claim:
    """Read a claim.

    Raises
    ------
    InputError
        For ``field``, if it is no such expression, or names something else than sides and features.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise InputError(field, text, "an expression such as 1 - a / b <= 0.17") from None
    mean_of = None
    means = [node for node in ast.walk(tree) if _is_mean(node)]
    if means:
        (call,) = means if len(means) == 1 else means[:1]
        assert isinstance(call, ast.Call), "asked before"
        if len(means) > 1 or len(call.args) != 1 or not isinstance(tree, ast.Compare):
            raise InputError(field, text, "one mean of one expression, compared with numbers")
        mean_of = call.args[0]
        tree = _Replaced(call).visit(tree)
    blank = _Blank(Interval(None, None))
    anything = {MEAN: blank} | dict.fromkeys(sides, blank) | {"": blank}
    uses: dict[str, set[str]] = {}
    try:
        _truth(tree, anything)
        if mean_of is not None:
            _number(mean_of, anything)
    except InputError as error:
        raise InputError(field, error.value, error.expected) from None
    for part in (tree, mean_of):
        for side, name in [] if part is None else _names(part, sides):
            uses.setdefault(side, set()).add(name)
    for name in sorted(uses.get("", set()) - set(features) - {MEAN}):
        raise InputError(field, name, one_of(name, (*sides, *features)))
    return Claim(text, tree, mean_of, {side: frozenset(names) for side, names in uses.items()})


class _Blank(dict[str, Interval]):
    """Knows everything, as the same interval."""

    def __init__(self, found: Interval) -> None:
        super().__init__()
        self._found = found

    def __missing__(self, name: str) -> Interval:
        return self._found


class _Replaced(ast.NodeTransformer):
    """Puts the name ``mean`` in the place of a call."""

    def __init__(self, call: ast.Call) -> None:
        self._call = call

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the call."""
        return ast.Name(MEAN, ast.Load()) if node is self._call else self.generic_visit(node)


def _is_mean(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == MEAN


def _names(tree: ast.expr, sides: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield side and name of everything that an expression reads."""
    parts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    parts |= {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr
        elif isinstance(node, ast.Name) and id(node) not in parts:
            yield (node.id, "value") if node.id in sides else ("", node.id)


def _truth(tree: ast.expr, case: Case) -> Truth:
    match tree:
        case ast.BoolOp(op=ast.And()):
            return conjunction([_truth(part, case) for part in tree.values])
        case ast.BoolOp():
            return disjunction([_truth(part, case) for part in tree.values])
        case ast.UnaryOp(op=ast.Not()):
            return negation(_truth(tree.operand, case))
        case ast.Compare() if all(type(operator) in _COMPARISONS for operator in tree.ops):
            numbers = [_number(part, case) for part in (tree.left, *tree.comparators)]
            pairs = zip(tree.ops, numbers, numbers[1:], strict=False)
            return conjunction([_COMPARISONS[type(operator)](left, right) for operator, left, right in pairs])
        case _:
            raise InputError("", ast.unparse(tree), "a comparison, or several with and, or, not")


def _number(tree: ast.expr, case: Case) -> Interval:
    match tree:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Interval.of(number)
        case ast.UnaryOp(op=ast.USub()):
            return -_number(tree.operand, case)
        case ast.BinOp() if type(tree.op) in _ARITHMETIC:
            return _ARITHMETIC[type(tree.op)](_number(tree.left, case), _number(tree.right, case))
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS and tree.args and not tree.keywords:
            return _FUNCTIONS[name](_number(part, case) for part in tree.args)
        case ast.Attribute(value=ast.Name(id=side)) if side in case:
            return case[side][tree.attr]
        case ast.Name() if tree.id in case:
            return case[tree.id]["value"]
        case ast.Name() if "" in case:
            return case[""][tree.id]
        case _:
            raise InputError(
                "", Said(ast.unparse(tree)), "a number, a side such as a or a.evictions, + - * /, min, max"
            )
