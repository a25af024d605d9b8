"""Options of a command by the signature and the docstring of its function, and what a docstring
says of options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from ..data import Between, check


def said_of(owner: Any) -> dict[str, str]:
    """What a function's docstring says of its arguments, or those of a class and of the classes
    above it of their attributes."""
    found: dict[str, str] = {}
    for one in reversed(getattr(owner, "__mro__", (owner,))):
        section = re.split(r"^(?:Attributes|Arguments):\n", _text(one), flags=re.MULTILINE)
        each = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[-1], re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in each if len(section) > 1}
    return found


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it. What is passed by name alone is an option, ``cut__nats`` as
    ``--cut.nats`` and ``bytes_`` as ``--bytes``; a text in its type stands for a value in the help.
    What is not of its type is refused before the call."""
    kinds, said = get_type_hints(function, include_extras=True), said_of(function)
    parameters = []
    for one in inspect.signature(function).parameters.values():
        kind, more = kinds[one.name], _metadata(kinds[one.name])
        if not any(isinstance(part, ParameterInfo) for part in more):
            metavar = next((part for part in more if isinstance(part, str)), None)
            limits = [f" ({part})" for part in more if isinstance(part, Between)]
            text = "".join([said[one.name], *limits])
            if one.kind is one.KEYWORD_ONLY:
                declared = _option(one, typer.Option(help=text, metavar=metavar))
            else:
                declared = typer.Argument(help=text, metavar=metavar)
            kind = Annotated[_plain(kind), declared]
        parameters.append(one.replace(annotation=kind))

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            check(_flag(name), value, kinds[name])
        function(*args, **kwargs)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    wrapped.__doc__ = _text(function).partition("\n\nArguments:\n")[0]
    return wrapped


def _text(owner: Any) -> str:
    return inspect.cleandoc(owner.__doc__ or "")


def _flag(name: str) -> str:
    return f"--{name.strip('_').replace('__', '.').replace('_', '-')}"


def _option(one: inspect.Parameter, declared: Any) -> Any:
    """With its name; what is off as a rule has no way to say so."""
    flag = _flag(one.name)
    switch = isinstance(one.default, bool) or "bool" in str(one.annotation)
    no = f"/--no-{flag[2:]}" if switch and one.default is not False else ""
    declared.param_decls = (f"{flag}{no}",)
    return declared


def _metadata(kind: Any) -> list[Any]:
    """What stands beside a type, at any depth."""
    own = kind.__metadata__ if get_origin(kind) is Annotated else ()
    return [*own, *(part for inner in get_args(kind) for part in _metadata(inner))]


def _plain(kind: Any) -> Any:
    """A type without what stands beside it."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    for inner in get_args(kind):
        if get_origin(inner) is Annotated:
            return _plain(inner) | None
    return kind
