"""A person's own tables: arrays in a `.npz`, or a `.csv` with a column to predict."""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .checks import DataError, check_finite, check_fraction
from .dataset import Dataset, Task
from .splits import carve

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_csv", "load_npz"]

_KEYS = ("x_train", "y_train", "x_test", "y_test")

_FEW = 20
"""Whole-number targets with at most this many distinct values are read as class labels."""


def load_npz(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    task: Task | None = None,
    val_fraction: float = 0.1,
    standardise: bool = True,
) -> Dataset:
    """Arrays `x_train`, `y_train`, `x_test`, `y_test` of a numpy archive; others are ignored.

    Nothing pickled is ever run.

    Arguments:
        path: The file.
        seed: Which training rows validate.
        task: See :meth:`Dataset.from_tensors`, as for the rest.
        val_fraction: Share of the training rows kept aside for validation.
        standardise: Whether to scale by training statistics.

    Returns:
        The data set.

    Raises:
        DataError: if the file is broken, lacks an array, or an array cannot be used.
    """
    path = Path(path)
    try:
        # opened here: numpy leaves a file open that turns out to be no archive
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path} holds one array", f"an archive of {', '.join(_KEYS)}")
            missing = [key for key in _KEYS if key not in archive.files]
            if missing:
                raise DataError(
                    f"{path} has no {', '.join(missing)}, only {', '.join(archive.files)}",
                    f"the arrays {', '.join(_KEYS)}",
                    "numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)",
                )
            with archive:
                arrays = [archive[key] for key in _KEYS]
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole .npz file of plain arrays ({error})",
            hint="write it again with numpy.savez, without object arrays",
        ) from error
    return Dataset.from_tensors(
        *arrays,
        task=task,
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name=path.stem,
    )


def load_csv(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    target: str | None = None,
    task: Task | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.1,
    standardise: bool = True,
) -> Dataset:
    """A table with a header line, numbers in all columns but the one to predict.

    A target of text, of truth values, or of whole numbers with at most 20 distinct values
    is a class label; any other is regressed.

    Arguments:
        path: The file.
        seed: Which rows test and validate.
        target: The column to predict; None takes the last one.
        task: None decides as said above.
        test_fraction: Share of the rows for testing (class by class for classification).
        val_fraction: Share of the other rows kept aside for validation.
        standardise: Whether to scale by training statistics.

    Returns:
        The data set.

    Raises:
        DataError: naming the line, column or row that cannot be used.
    """
    path = Path(path)
    frame = _read_csv(path)
    columns = [str(name) for name in frame.columns]
    frame.columns = columns
    target = columns[-1] if target is None else target
    if target not in columns:
        raise DataError(
            f"{path} has no column {target!r}",
            f"target= one of {', '.join(columns)}",
            "an .npz or Dataset.from_tensors, for several targets",
        )
    features = [name for name in columns if name != target]
    if not features:
        raise DataError(f"{path} has only the column {target!r}", "features beside the target")
    x = torch.from_numpy(np.stack([_numbers(path, frame[name]) for name in features], 1))
    check_finite(str(path), x, features)
    y, names = _read_target(path, frame[target], task)
    check_fraction("test_fraction", test_fraction)
    test, train = carve(len(x), test_fraction, seed, purpose="test", labels=y if names else None)
    return Dataset.from_tensors(
        x[train],
        y[train],
        x[test],
        y[test],
        task="classification" if names else "regression",
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name=path.stem,
        class_names=names,
    )


def _read_csv(path: Path) -> pd.DataFrame:
    """Reads the table and refuses missing values."""
    import pandas as pd  # a second that only this needs

    try:
        with warnings.catch_warnings():
            # pandas would drop the surplus fields of long rows with no more than a warning
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, index_col=False, low_memory=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = str(error).strip()
        if isinstance(error, Warning):
            reason = "rows have more fields than the first line has names"
        raise DataError(
            f"{path} is not a table ({reason})", "as many fields in each line"
        ) from error
    except (pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as csv ({error})", "text with a header") from error
    if len(frame) == 0:
        raise DataError(f"{path} has no rows below its first line", "a header line and rows")
    if all(_is_number(name) for name in frame.columns):
        raise DataError(
            f"{path} begins with numbers ({', '.join(map(str, frame.columns[:3]))}, ...)",
            "the names of the columns in its first line",
        )
    missing = frame.isna().to_numpy()
    if missing.any():
        row, column = (int(i) for i in np.argwhere(missing)[0])
        raise DataError(
            f"{path} lacks {int(missing.sum())} value(s), the first in row {row}, "
            f"column {frame.columns[column]!r}",
            "a value in each field",
            "drop those rows, or fill them in",
        )
    return frame


def _is_number(text: Any) -> bool:
    """Whether `text` reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: Path, column: pd.Series) -> np.ndarray:
    """The values of a column (rows,) in float64."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column):
        bad = pd.to_numeric(column, errors="coerce").isna().to_numpy()
        row = int(bad.argmax())
        raise DataError(
            f"{path}, column {str(column.name)!r} holds {column.iloc[row]!r} in row {row}",
            "numbers",
            "encode it as numbers (pandas.get_dummies), or leave the column out",
        )
    return column.to_numpy(np.float64)


def _read_target(
    path: Path, column: pd.Series, task: Task | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (rows,) with the names of the classes, or targets (rows,) with no names."""
    import pandas as pd

    values = column.to_numpy()
    kinds = pd.api.types
    text = kinds.is_bool_dtype(column) or not kinds.is_numeric_dtype(column)
    whole = kinds.is_integer_dtype(column)
    few = text or (whole and len(np.unique(values)) <= _FEW)
    if task == "regression" or (task is None and not few):
        y = torch.from_numpy(_numbers(path, column).copy())
        check_finite(str(path), y[:, None], [str(column.name)])
        return y, ()
    if not (text or whole) and (values != np.round(values)).any():
        row = int((values != np.round(values)).argmax())
        raise DataError(
            f"{path}, column {str(column.name)!r} holds {values[row]} in row {row}",
            "text or whole numbers as class labels",
            "task='regression'",
        )
    distinct, label = np.unique(values.astype(str) if text else values, return_inverse=True)
    names = tuple(str(value) if text else str(int(value)) for value in distinct)
    if len(names) < 2:
        raise DataError(
            f"{path}, column {str(column.name)!r} holds only {names[0]!r}", "at least 2 classes"
        )
    return torch.from_numpy(label.astype(np.int64)), names
