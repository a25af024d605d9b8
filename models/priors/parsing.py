"""Weight priors from words, as a command line has them."""

from __future__ import annotations

from ...data import PyroccamError, checked
from .. import kinds, suggestion
from .base import WeightPrior


def words() -> dict[str, type[WeightPrior]]:
    """All weight priors that have words, a person's own among them, by name."""
    found = {vars(kind).get("words", ""): kind for kind in kinds(WeightPrior)}
    return {words.split(",")[0].split(":")[0]: found[words] for words in sorted(found) if words}


@checked
def parse_weights(text: str) -> WeightPrior:
    """A weight prior from words: a name, or a name and an argument, such as ``ghs:1e-5``.

    Without an argument it is the prior's default. Case and ``_`` for ``-`` do not matter.

    Example:
        >>> parse_weights("ghs:1e-4")
        GroupHorseshoe(tau0=0.0001)
    """
    name, colon, argument = text.strip().lower().partition(":")
    name, known = name.strip().replace("_", "-"), words()
    if name not in known:
        examples = ", ".join(kind.words for kind in known.values())
        raise PyroccamError(
            f"Unknown weight prior {text!r}.{suggestion(name, known)} Write {examples}."
        )
    kind = known[name]
    try:
        return kind.from_words(argument.strip()) if colon else kind()
    except (TypeError, ValueError) as error:
        raise PyroccamError(
            f"Cannot read the weight prior {text!r}: {error} Write {kind.words}."
        ) from error
