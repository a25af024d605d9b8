"""Options of a command by the signature and the docstring of its function, and what a docstring
says of options."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer

from ..data import Between, PyroccamError, check

# Words of Python's for what JSON spells in another way.
_PYTHON = {"None": None, "none": None, "True": True, "False": False}


class Known(NamedTuple):
    """Names that a shell completes, beside a type."""

    names: Sequence[str]

    def completed(self, incomplete: str) -> list[str]:
        return [name for name in self.names if name.startswith(incomplete)]


def said_of(owner: Any) -> dict[str, str]:
    """What a function's docstring says of its arguments, or those of a class and of the classes
    above it of their attributes."""
    found: dict[str, str] = {}
    for one in reversed(getattr(owner, "__mro__", (owner,))):
        section = re.split(r"^(?:Attributes|Arguments):\n", _text(one), flags=re.MULTILINE)
        each = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[-1], re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in each if len(section) > 1}
    return found


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """``["lr=0.01", "prior=uniform", "patience=null"]`` to a dictionary; values as in JSON."""
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise PyroccamError(f"--set takes key=value, got {pair!r}. Example: --set lr=0.01")
        if name in out:
            raise PyroccamError(f"{name} was given twice: leave one of them out.")
        try:
            out[name] = json.loads(text)
        except (ValueError, RecursionError):  # also of numbers with thousands of digits
            out[name] = _PYTHON.get(text, text)
    return out


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it. What is passed by name alone is an option, ``cut__nats`` as
    ``--cut.nats`` and ``bytes_`` as ``--bytes``, and so are fields of a dataclass that it takes. A
    text in a type stands for a value in the help, and a mapping is given as pairs of key and value.
    What is not of its type is refused before the call."""
    kinds, whole = get_type_hints(function, include_extras=True), inspect.signature(function)
    several: dict[str, Any] = {n: kind for n, kind in kinds.items() if is_dataclass(kind)}
    parameters = [
        part for one in whole.parameters.values() for part in _parameters(one, kinds, function)
    ]
    plain = [one.replace(annotation=_as_typer(one)) for one in parameters]
    kinds |= {one.name: one.annotation[0] for one in parameters}

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            if _is_mapping(kinds[name]) and isinstance(value, list | None):
                kwargs[name] = value = parse_settings(value or [])
            check(_flag(name), value, kinds[name])
        for name, kind in several.items():
            if name not in kwargs:
                own = [field.name for field in fields(kind)]
                kwargs[name] = kind(**{n: kwargs.pop(n) for n in own})
        function(*args, **kwargs)

    wrapped.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in plain}
    wrapped.__doc__ = _text(function).partition("\n\nArguments:\n")[0]
    return wrapped


def _parameters(
    one: inspect.Parameter, kinds: Mapping[str, Any], owner: Any
) -> Iterator[inspect.Parameter]:
    """A parameter, or one for each field of a dataclass; annotated by type and text."""
    kind: Any = kinds[one.name]
    if not is_dataclass(kind):
        yield one.replace(annotation=(kind, said_of(owner)[one.name]))
        return
    own, said = get_type_hints(kind, include_extras=True), said_of(kind)
    for name, part in inspect.signature(kinds[one.name]).parameters.items():
        default = None if _is_mapping(own[name]) else part.default
        how = part.POSITIONAL_OR_KEYWORD if default is part.empty else part.KEYWORD_ONLY
        yield part.replace(annotation=(own[name], said[name]), default=default, kind=how)


def _as_typer(one: inspect.Parameter) -> Any:
    """The type of a parameter as typer has it. What is off as a rule has no way to say so."""
    kind, text = one.annotation
    if _is_mapping(kind):
        kind = Annotated[list[str] | None, "KEY=VALUE"]
    more = _metadata(kind)
    text += "".join(f" ({part})" for part in more if isinstance(part, Between))
    how: dict[str, Any] = {"help": text}
    for part in more:
        how |= {"metavar": part} if isinstance(part, str) else {}
        how |= {"autocompletion": part.completed} if isinstance(part, Known) else {}
    plain = _plain(kind)
    if one.kind is not one.KEYWORD_ONLY:
        return Annotated[plain, typer.Argument(**how)]
    flag = _flag(one.name)
    if bool in (plain, *get_args(plain)) and one.default is not False:
        flag = f"{flag}/--no-{flag[2:]}"
    return Annotated[plain, typer.Option(flag, **how)]


def _text(owner: Any) -> str:
    return inspect.cleandoc(owner.__doc__ or "")


def _flag(name: str) -> str:
    return f"--{name.strip('_').replace('__', '.').replace('_', '-')}"


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Mapping


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
