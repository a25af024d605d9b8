"""A data set as whole tensors: checked, split and standardised once, then only indexed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .checks import (
    DataError,
    as_tensor,
    check_inputs,
    check_pair,
    check_targets,
)
from .labels import check_labels, count_classes
from .splits import carve, moments, standardise

__all__ = ["Dataset", "Task"]

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training, validation and test rows of one problem.

    Arguments:
        name: What to call the data in reports.
        task: "classification" or "regression".
        x_train: Inputs (N, features) or (N, channels, ...), float32, standardised.
        y_train: Labels (N,) int64, or standardised targets (N, T) float32.
        x_val: Validation inputs, carved out of the training rows; may have no rows.
        y_val: Validation labels or targets.
        x_test: Test inputs.
        y_test: Test labels or targets.
        classes: Number of classes; None for regression.
        class_names: One name a class; () for regression, or if the classes have none.
        x_mean: Mean over training rows, a feature of a table or a channel of images.
        x_std: Standard deviation over training rows; 1 for a constant feature.
        y_mean: Training mean (T,) of the targets; (0,) for classification.
        y_std: Training standard deviation (T,) of the targets; (1,) for classification.
            `y * y_std + y_mean` is in original units.
        source: JSON-able; `load(**source)` gives the same data again, except for
            {"name": "tensors"}, which came from memory.
    """

    name: str
    task: Task
    x_train: Tensor
    y_train: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int | None
    class_names: tuple[str, ...]
    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor
    source: dict[str, Any]

    @property
    def N(self) -> int:
        """Number of training rows: the size of the data plate."""
        return self.x_train.shape[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return tuple(self.x_train.shape[1:])

    @property
    def outputs(self) -> int:
        """How many outputs a network needs: classes, or targets."""
        return self.y_train.shape[1] if self.classes is None else self.classes

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of "train", "val" or "test".

        Raises:
            DataError: if there is no such split.
        """
        if name not in ("train", "val", "test"):
            raise DataError(f"split {name!r} of {self.name}", "'train', 'val' or 'test'")
        return getattr(self, f"x_{name}"), getattr(self, f"y_{name}")

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dataset:
        """The same data with every tensor on `device`, and all but labels of type `dtype`:
        `data.to(dtype=torch.float64)` goes with a network in double precision."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                of_type = dtype if value.is_floating_point() else None
                values[name] = value.to(device=device, dtype=of_type)
        return Dataset(**values)

    def laid_out(self, memory_format: torch.memory_format) -> Dataset:
        """The same data with images, inputs ``(C, H, W)``, in another order of memory."""
        if len(self.input_shape) != 3:
            return self
        names = ("x_train", "x_val", "x_test")
        return replace(self, **{n: getattr(self, n).to(memory_format=memory_format) for n in names})

    def flattened(self) -> Dataset:
        """The same data with each input as one vector; the statistics stay per channel."""
        return replace(
            self,
            x_train=self.x_train.flatten(1),
            x_val=self.x_val.flatten(1),
            x_test=self.x_test.flatten(1),
        )

    def all_rows(self) -> Dataset:
        """The same data with the validation rows after those of training, and none to validate:
        for a last fit, when nothing is left to choose. Inputs stay on the scale they had."""
        return replace(
            self,
            x_train=torch.cat([self.x_train, self.x_val]),
            y_train=torch.cat([self.y_train, self.y_val]),
            x_val=self.x_val[:0],
            y_val=self.y_val[:0],
        )

    def standardised_as(self, other: Dataset) -> Dataset:
        """The same data on the scale of another set, whose network is to predict it.

        Raises:
            DataError: if the inputs differ in shape.
        """
        if self.input_shape != other.input_shape:
            raise DataError(
                f"inputs {self.input_shape} of {self.name}",
                f"{other.input_shape}, as in {other.name}",
            )
        changed: dict[str, Any] = {}
        for split in ("train", "val", "test"):
            x, y = self.split(split)
            x = x * _along(self.x_std, x) + _along(self.x_mean, x)
            changed[f"x_{split}"] = (x - _along(other.x_mean, x)) / _along(other.x_std, x)
            if self.task == "regression":
                y = y * self.y_std + self.y_mean
                changed[f"y_{split}"] = (y - other.y_mean.to(y)) / other.y_std.to(y)
        stats = {n: getattr(other, n) for n in ("x_mean", "x_std", "y_mean", "y_std")}
        return replace(self, **changed, **stats)

    def refuse_another_kind(self, expected: Dataset) -> None:
        """Refuse to stand in for data on which a network was trained.

        Raises:
            DataError: if the task, the shape of the inputs or the number of outputs differs.
        """
        kinds = [(d.task, d.input_shape, d.outputs) for d in (self, expected)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{self!r}",
                f"the kind of {expected!r}, on which the network was trained: task, input shape "
                "and number of classes or targets must be the same",
            )

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(self.split(s)[0])} {s}" for s in ("train", "val", "test"))
        what = f"{self.classes} classes" if self.classes else f"{self.outputs} target(s)"
        shape = " x ".join(map(str, self.input_shape))
        return f"Dataset({self.name!r}, {self.task}: {what}, input {shape}, rows: {rows})"

    @classmethod
    def from_tensors(
        cls,
        x_train: Any,
        y_train: Any,
        x_test: Any,
        y_test: Any,
        *,
        task: Task | None = None,
        val_fraction: float = 0.1,
        seed: int = 0,
        standardise: bool = True,
        name: str = "tensors",
        class_names: Sequence[str] = (),
        classes: int | None = None,
        groups: Any = None,
    ) -> Dataset:
        """Checks, splits and standardises arrays; nothing that is given is changed.

        Arguments:
            x_train: Inputs (rows, features), sequences (rows, channels, length), images
                (rows, channels, height, width) or volumes, numpy or torch. Grey images need
                their one channel: x[:, None].
            y_train: Labels (rows,), or targets (rows,) or (rows, T).
            x_test: Test inputs, of the same shape but for the rows.
            y_test: Test labels or targets.
            task: None reads it off `y_train`: whole-number types are labels.
            val_fraction: Share of the *training* rows kept aside for validation, class by
                class for classification; 0 for none.
            seed: Which rows those are. Rows keep their order.
            standardise: Whether to scale inputs (along dimension 1) and regression targets
                by the mean and standard deviation of the training rows that are left.
            name: What to call the data.
            class_names: One name a class.
            classes: Number of classes, if the training rows may lack some. Otherwise read
                off `class_names`, or off the labels, which then must not skip a number.
            groups: Names or numbers (rows,) of what each training row comes from, a person
                for one, where rows of one are alike. Validation then takes whole groups, as
                many as come nearest to `val_fraction`, instead of rows class by class.

        Returns:
            The data set, on the CPU.

        Raises:
            DataError: naming the array, the row and the value that cannot be used.
        """
        x_train, y_train = as_tensor("x_train", x_train), as_tensor("y_train", y_train)
        x_test, y_test = as_tensor("x_test", x_test), as_tensor("y_test", y_test)
        for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            check_inputs(f"x_{split}", x)
            check_pair(f"x_{split}", x, f"y_{split}", y)
        if x_train.shape[1:] != x_test.shape[1:]:
            raise DataError(
                f"x_test has inputs of shape {tuple(x_test.shape[1:])}",
                f"{tuple(x_train.shape[1:])} as in x_train",
            )
        if x_train.shape[0] < 2:
            raise DataError("x_train has 1 row", "at least 2 training rows")
        if task is None:
            task = "regression" if y_train.is_floating_point() else "classification"

        labels = None
        if task == "classification":
            classes = count_classes(check_labels("y_train", y_train), classes, class_names)
            labels = y_train = check_labels("y_train", y_train, classes)
            y_test = check_labels("y_test", y_test, classes)
        elif task == "regression":
            if classes is not None or class_names:
                raise DataError(
                    f"classes={classes}, class_names={tuple(class_names)} for regression",
                    "neither",
                    "task='classification'",
                )
            y_train, y_test = check_targets("y_train", y_train), check_targets("y_test", y_test)
            if y_train.shape[1] != y_test.shape[1]:
                raise DataError(
                    f"y_test has {y_test.shape[1]} target(s) a row",
                    f"{y_train.shape[1]} as in y_train",
                )
        else:
            raise DataError(f"task={task!r}", "'classification' or 'regression'")

        val, train = carve(len(x_train), val_fraction, seed, labels=labels, groups=groups)
        xs, x_mean, x_std = _scaled(
            (x_train[train], x_train[val], x_test), standardise, x_train.shape[1]
        )
        ys: tuple[Tensor, ...] = (y_train[train], y_train[val], y_test)
        y_mean, y_std = torch.zeros(1), torch.ones(1)
        if task == "regression":
            ys, y_mean, y_std = _scaled(ys, standardise, y_train.shape[1])
        return cls(
            name=name,
            task=task,
            x_train=xs[0],
            y_train=ys[0],
            x_val=xs[1],
            y_val=ys[1],
            x_test=xs[2],
            y_test=ys[2] if task == "regression" else ys[2].clone(),
            classes=classes,
            class_names=tuple(map(str, class_names)),
            x_mean=x_mean,
            x_std=x_std,
            y_mean=y_mean,
            y_std=y_std,
            source={
                "name": "tensors",
                "seed": int(seed),
                "val_fraction": val_fraction,
                "standardise": standardise,
            },
        )


def _scaled(
    parts: tuple[Tensor, ...], wanted: bool, width: int
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Scales all parts by the statistics of the first one, which are the training rows."""
    if wanted:
        mean, std = moments(parts[0])
    else:
        mean, std = torch.zeros(width).double(), torch.ones(width).double()
    return tuple(standardise(p, mean, std) for p in parts), mean.float(), std.float()


def _along(statistic: Tensor, x: Tensor) -> Tensor:
    """A statistic for each feature or channel, in the shape that acts on inputs `x`."""
    statistic = statistic.to(x)
    if x.dim() == 2 and x.shape[1] != len(statistic):  # flattened images keep channel statistics
        return statistic.repeat_interleave(x.shape[1] // len(statistic))
    return statistic.view(-1, *[1] * (x.dim() - 2))
