"""Data sets and toys: read, checked, split, standardised."""

from typing import TYPE_CHECKING

from .door import lazy_names

if TYPE_CHECKING:
    from .cards import card
    from .checks import (
        as_tensor,
        check_finite,
        check_numeric,
        check_pair,
        named,
        refuse_masked,
        rows_without,
        with_channel,
    )
    from .dataset import Dataset, check_rows, on_scale
    from .errors import (
        DataError,
        DataWarning,
        NetworkError,
        PyroccamError,
        TooLarge,
        listed,
        shown,
    )
    from .fields import Fields, Several, are_several
    from .fingerprints import add_rows, fingerprint, known_rows
    from .labels import check_labels, count_classes, number_names, refuse_classes
    from .limits import allowing, ask
    from .marginal import Marginal
    from .numbering import numbered, row_number
    from .own_code import OwnFiles, attribute, is_code
    from .ranges import (
        AtLeastTwo,
        Between,
        Count,
        Finite,
        Fraction,
        NotNegative,
        Options,
        Positive,
        Rule,
        Seed,
        Share,
        ShareOrZero,
        Whole,
        check,
        checked,
        described,
        kinds_of,
        nearest,
    )
    from .registry import available, is_own, load, options_of
    from .roots import read_bytes, reading, resolve_root
    from .rows import far_off, new_rows
    from .sets import spirals
    from .splits import Scaling, along, carve, constant_as_one, generator, pick
    from .streaming import stream
    from .tasks import Task, check_amounts, check_targets, decide_task
    from .weighting import check_weights, of_classes, scaled

__all__ = [
    "DataError",
    "DataWarning",
    "Dataset",
    "PyroccamError",
    "available",
    "far_off",
    "load",
    "new_rows",
    "spirals",
    "stream",
]

__getattr__, __dir__ = lazy_names(__name__)
