"""Changes of a module in one expression: an operator, a number, a condition, a call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn,
    ast.Add: ast.Sub, ast.Mult: ast.Div, ast.And: ast.Or,
}  # fmt: skip
NAMES = {"min": "max", "clamp_min": "clamp_max", "argmin": "argmax", "any": "all", "sum": "mean"}
OPERATORS |= {other: one for one, other in OPERATORS.items()}
NAMES |= {other: one for one, other in NAMES.items()}
LEFT_OUT = ("clamp", "clamp_min", "clamp_max", "detach")
TEXTS = (ast.JoinedStr, ast.List, ast.ListComp, ast.Dict, ast.Tuple)
SKIPPED = ("annotation", "returns", "decorator_list")


class Mutant(NamedTuple):
    """Lines of the statement, the change, and the whole text with it."""

    lines: range
    change: str
    text: str


def changed(node: Any) -> Iterator[Any]:
    """Each node that could stand in the place of one."""

    def made(**fields: Any) -> Any:
        new = copy.copy(node)
        vars(new).update(fields)
        return new

    match node:
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield made(ops=[OPERATORS[type(op)]()])
        case ast.BinOp(op=op, left=a, right=b) if type(op) in OPERATORS:
            if not any(isinstance(s, TEXTS) or type(getattr(s, "value", 0)) is str for s in (a, b)):
                yield made(op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield made(op=OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield made(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield made(value=2 * value or value + 1)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name) as called, args=args):
            if name in NAMES:
                other = copy.copy(called)
                setattr(other, "attr" if isinstance(called, ast.Attribute) else "id", NAMES[name])
                yield made(func=other)
            if name in LEFT_OUT and isinstance(called, ast.Attribute):
                yield called.value
            plain = all(isinstance(a, ast.Name | ast.Attribute) for a in args)
            if len(args) == 2 and plain and name not in ("isinstance", "getattr", "zip"):
                yield made(args=args[::-1])
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(
            test, ast.Compare | ast.UnaryOp
        ):
            yield ast.UnaryOp(ast.Not(), test)  # in the place of the condition


def expressions(node: ast.AST, inside: Any = None) -> Iterator[tuple[ast.AST, Any]]:
    """Nodes within, and the simple statement of each, if there is one; not those of annotations,
    decorators, messages and formatted strings."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            aside = name in SKIPPED or isinstance(child, ast.JoinedStr | ast.Raise)
            if isinstance(child, ast.AST) and not aside:
                simple = isinstance(child, ast.stmt) and not hasattr(child, "body")
                around = child if simple else inside
                yield child, around
                yield from expressions(child, around)


def mutants(source: str) -> list[Mutant]:
    """All of a module: texts with one expression changed, no two of which parse alike."""
    text, seen, found = source.encode(), {ast.dump(ast.parse(source))}, []
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, statement in expressions(ast.parse(source)):
        for new in changed(node):
            place: Any = getattr(node, "test", node)
            first = starts[place.lineno - 1] + place.col_offset
            last = starts[place.end_lineno - 1] + place.end_col_offset
            made = text[:first] + f"({ast.unparse(new)})".encode() + text[last:]
            dumped = ast.dump(ast.parse(made))
            if dumped not in seen:
                seen.add(dumped)
                change = f"{ast.unparse(place)}  ->  {ast.unparse(new)}"
                whole = statement or place  # the lines of a tuple of numbers are no events
                lines = range(whole.lineno, whole.end_lineno + 1)
                found.append(Mutant(lines, change, made.decode()))
    return found
