"""Texts as whole numbers, by the tokenizer in the folder of a transformer."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from .. import DataError, DataWarning, ask, read_bytes, reading, row_number

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


def tokenised(
    folder: Path, texts: Iterable[object], most: int | None = None, width: int | None = None
) -> dict[str, np.ndarray]:
    """`input_ids` and `attention_mask` (rows, tokens) in int64 of texts, one a row, padded on the
    right to the longest of them; the files of a folder alone are read, and no code in it is run.

    Arguments:
        folder: With the tokenizer, as `from_pretrained` opens it.
        most: Tokens that are kept of a text; None refuses one that the tokenizer calls too long.
        width: Tokens of each row, as in training.

    Raises:
        DataError: if there is no tokenizer, or a text is too long.
        TooLarge: if the numbers ask for more memory than may be taken.

    Warns:
        DataWarning: of texts that are cut.
    """
    tokenizer, words = _tokenizer(folder), [str(text) for text in texts]
    ask(64.0 * sum(map(len, words)), str(folder))
    lengths = np.array([len(ids) for ids in tokenizer(words, verbose=False)["input_ids"]])
    row, longest = int(lengths.argmax()), int(lengths.max())
    limit = int(min(tokenizer.model_max_length, _positions(folder), most or longest))
    if longest > limit and (most, width) == (None, None):
        found = f"the text in row {row_number(row)} has {longest} tokens"
        raise DataError(found, f"at most {limit}, as {folder} takes", f"max_length={limit}")
    width = width or min(limit, longest)
    if width <= (marks := tokenizer.num_special_tokens_to_add()):
        raise DataError(f"max_length={width}", f"more than the {marks} marks of the tokenizer")
    if over := int((lengths > width).sum()):
        said = f"{over} of {len(words)} texts are cut after {width} tokens; the longest: {longest}."
        warnings.warn(said, DataWarning, stacklevel=2)
    ask(64.0 * len(words) * width, str(folder))
    padded = tokenizer(words, padding="max_length", truncation=True, max_length=width)
    return {name: np.array(padded[name]) for name in ("input_ids", "attention_mask")}


def _positions(folder: Path) -> float:
    """Tokens for which the network in a folder has positions; not every tokenizer knows that."""
    path = folder / "config.json"
    with reading(path, "a description of a network") if path.is_file() else nullcontext():
        words = json.loads(read_bytes(path)) if path.is_file() else {}
        kind, found = str(words.get("model_type")), words.get("max_position_embeddings", math.inf)
        return float(words.get("n_positions", found)) - 2 * ("roberta" in kind)  # begins at 2


def _tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder, which pads on the right."""
    if not any((folder / name).is_file() for name in _FILES):
        found = f"{folder} has no tokenizer" if folder.is_dir() else f"no folder {folder}"
        raise DataError(found, f"a folder with {_FILES[0]}")
    try:
        from transformers import AutoTokenizer  # seconds that only texts need
    except ImportError as error:
        raise DataError("texts without transformers", hint="pip install transformers") from error
    with reading(folder, "a tokenizer"):
        made: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    made.pad_token = made.pad_token or made.eos_token or made.unk_token
    made.padding_side = made.truncation_side = "right"
    return made
