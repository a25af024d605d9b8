"""Names that any text has in a module: readable, and never one name for two."""

from __future__ import annotations

import keyword
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from torch import fx, nn

# What a generated ``forward`` or its module already calls something else.
RESERVED = frozenset({"self", *dir(fx.GraphModule), *dir(nn.Module()), "_graph", "_code"})


K = TypeVar("K", bound=Hashable)


def identifiers(texts: Mapping[K, str]) -> dict[K, str]:
    """An identifier of Python for each text, in their order, so that the same texts give the same.

    Example:
        >>> identifiers({1: "conv 3", 2: "conv-3", 3: "class"})
        {1: 'conv_3', 2: 'conv_3_2', 3: 'class_2'}
    """
    wanted = {}
    for key, text in texts.items():
        plain = re.sub(r"\W", "_", text, flags=re.ASCII)
        wanted[key] = f"_{plain}" if not plain or plain[0].isdigit() else plain
    return distinct(wanted, {*RESERVED, *keyword.kwlist})


def distinct(wanted: Mapping[K, str], taken: Iterable[str] = ()) -> dict[K, str]:
    """Names that each asks for, with a number behind what is taken."""
    used = set(taken)
    # Those that get what they ask for come first: a number is never another's own name.
    firsts = {ask: key for key, ask in reversed([*wanted.items()]) if ask not in used}
    used |= {*firsts}
    found: dict[K, str] = {}
    for key, ask in wanted.items():
        given, count = ask, 1
        while firsts.get(ask) != key and given in used:
            count += 1
            given = f"{ask}_{count}"
        used.add(given)
        found[key] = given
    return found
