"""A data set as whole tensors: checked, split and standardised once, then only indexed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .cards import card
from .checks import (
    as_tensor,
    check_inputs,
    check_pair,
    named,
    warn_of_wild_cells,
    with_channel,
)
from .errors import DataError
from .fields import Fields, Several, are_several
from .fingerprints import fingerprint, known_rows
from .labels import are_names, check_labels, count_classes, number_names, refuse_classes
from .marginal import Marginal
from .ranges import AtLeastTwo, Seed, ShareOrZero, checked
from .record import differences as _differences
from .record import record as _record
from .splits import (
    Scaling,
    along,
    carve,
    moments,
    number_groups,
    rescale,
    scaling_in_force,
)
from .splits import standardise as scale
from .tasks import Task, check_targets, decide_task
from .weighting import by_class, check_weights, joined, scaled

_SPLITS = ("train", "val", "test")

TOGETHER = 1024
"""Rows of texts among which those of about one length come together."""

_AS_ROUNDED = Scaling(*[torch.empty(0)] * 4)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training, validation and test rows of one problem.

    Arguments:
        name: What to call the data in reports.
        task: "classification", "regression", "counts" or "multi-label".
        x_train: Inputs (N, features) or (N, channels, ...), float32, standardised; or int64, if
            they are ids. Several inputs of a row stand side by side (N, columns).
        y_train: Labels (N,) int64; or targets (N, T) float32, those of a regression standardised,
            counts and labels that are 0 or 1 as they are.
        x_val: Validation inputs, carved out of the training rows; may have no rows.
        y_val: Validation labels or targets.
        x_test: Test inputs.
        y_test: Test labels or targets.
        classes: Number of classes; None for other tasks.
        class_names: One name a class; () for other tasks, or if the classes have none.
        x_mean: Mean over training rows, a feature of a table or a channel of images.
        x_std: Standard deviation over training rows; 1 for a constant feature.
        y_mean: Training mean (T,) of the targets of a regression; zeros for other tasks.
        y_std: Training standard deviation (T,) of those targets; ones for other tasks.
            `y * y_std + y_mean` is in original units.
        source: JSON-able; `load(**source)` gives the same data again, except for
            {"name": "tensors"}, which came from memory, and rows of `new_rows`.
        columns: Names of the features in their order; () if they have none.
        target: Name of what is predicted; "" if it has none.
        digest: Fingerprint of the arrays that :meth:`from_tensors` was given, before anything
            was split or scaled. What only moves, scales, reshapes or joins their rows keeps it
            (`to`, `laid_out`, `flattened`, `all_rows`, `standardised_as`), and so does
            `dataclasses.replace`, which cannot know; rows of `new_rows` have another one. A
            data set that is built by hand has that of its own tensors.
        scaling: The statistics in float64, by which rows were scaled; those of `x_mean` and
            the others if they are not given.
        weights: How much each training row counts in a fit (N,), with the mean 1, so that all of
            them count as N rows; None if all count the same. Metrics do not look at them.
        val_weights: Those of the validation rows, on the same scale: which checkpoint is the best
            is told by them.
        fields: What stands where in the columns, if a row has several inputs.
            `fields.split(x)` is the dict or the tuple of them, as a network takes it.
        categories: Of a table with columns of text their values, of which each is one of the last
            `columns`, 0 or 1.
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
    columns: tuple[str, ...] = ()
    target: str = ""
    digest: str = ""
    scaling: Scaling = _AS_ROUNDED
    weights: Tensor | None = None
    val_weights: Tensor | None = None
    fields: Fields | None = None
    categories: dict[str, list[str]] = field(default_factory=dict)

    streamed: ClassVar[bool] = False
    """Training rows are read when they are needed, and there is no `x_train`: see
    :class:`~pyroccam.data.streaming.streamed.Streamed`."""

    def __post_init__(self) -> None:
        if self.x_train.device.type == "meta":
            return
        if not self.digest:
            rows = {f"{part}_{s}": getattr(self, f"{part}_{s}") for s in _SPLITS for part in "xy"}
            object.__setattr__(self, "digest", fingerprint(**rows))
        if self.scaling is _AS_ROUNDED:
            stats = (self.x_mean, self.x_std, self.y_mean, self.y_std)
            object.__setattr__(self, "scaling", Scaling(*(s.cpu().double() for s in stats)))

    @property
    def _examples(self) -> Dataset:
        """A set in memory with rows that are like all of these."""
        return self

    @property
    def N(self) -> int:
        """Number of training rows: the size of the data plate."""
        return self.x_train.shape[0]

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {"train": self.N, "val": len(self.x_val), "test": len(self.x_test)}

    @property
    def device(self) -> torch.device:
        """Where the rows are, or come to when they are read."""
        return self._examples.x_train.device

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return tuple(self._examples.x_train.shape[1:])

    @property
    def weighted(self) -> bool:
        """Rows have weights: they stand behind the targets that a fit takes."""
        return self._examples.weights is not None

    @property
    def shapes(self) -> Any:
        """What a network is built for: the shape of one input; of several their shapes, in a dict
        or a tuple as they are."""
        return self.input_shape if self.fields is None else self.fields.shapes

    def packed(self, x: Tensor | Several) -> Tensor:
        """Inputs, standardised as these are, as the tensor that is kept of them, where these rows
        are and of their number type.

        Raises:
            DataError: for several inputs that are not those of these rows, rows of another shape,
                and what is no finite real number.
        """
        if self.fields is not None and not isinstance(x, Tensor):
            x = self.fields.pack("x", x)
        elif isinstance(x, dict | tuple):
            raise DataError(f"x is a {type(x).__name__}", f"one tensor, as in {self!r}")
        elif not isinstance(x, Tensor) or x.is_complex() or x.layout != torch.strided:
            x = as_tensor("x", x)
        shape, own = tuple(x.shape), self.input_shape
        if len(shape) != 1 + len(own) or (not self.ids and shape[1] != own[0]):
            raise DataError(f"x has shape {shape}", f"rows of shape {own} in a batch")
        if len(x):
            check_inputs("x", x, ids=self.ids)
        return x.to(self._examples.x_train)

    @property
    def outputs(self) -> int:
        """How many outputs a network needs: classes, or targets."""
        return self._examples.y_train.shape[1] if self.classes is None else self.classes

    @cached_property
    def targets(self) -> Tensor:
        """Training targets as a fit takes them: `y_train`, and if rows have weights these behind
        it, as a last column (N, T + 1) of float numbers."""
        if self.weights is None:
            return self.y_train
        columns = self.y_train.to(self.weights).reshape(self.N, -1), self.weights[:, None]
        return torch.cat(columns, 1)

    @cached_property
    def marginal(self) -> Marginal:
        """What the training targets are, whatever the inputs."""
        return Marginal.of(self.y_train, self.classes)

    def head(self, rows: int) -> tuple[Tensor, Tensor]:
        """Some training rows, as many if there are, with their `targets`: an example of what a
        network is given."""
        few = self._examples
        return few.x_train[:rows], few.targets[:rows]

    def first(self, rows: int) -> Dataset:
        """The same data with so many training rows, if there are: of what is streamed those that
        are held as examples."""
        few = self._examples
        weights = None if few.weights is None else few.weights[:rows]
        return few.but(x_train=few.x_train[:rows], y_train=few.y_train[:rows], weights=weights)

    def take(self, split: str, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, without weights, of the rows of a split at some places (B,)."""
        x, y = self.split(split)
        return x[places.to(x.device)], y[places.to(y.device)]

    def parts(self, split: str, *, weighted: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows of a split in their order, as parts that fit into memory; those of training
        with their `targets`, or without weights. What is in memory is one part."""
        x, y = self.split(split)
        yield x, self.targets if split == "train" and weighted else y

    def order(self, seed: int, epoch: int) -> Tensor:
        """The order of the training rows in an epoch of a fit (N,), of seed and epoch alone, so
        that a fit which is taken up again goes through the same.

        Of padded texts those of about one length come together, out of a thousand at a time, so
        that little of a minibatch is padding: from a length that is random on, up to the longest
        and then from the shortest.
        """
        noise = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.N, generator=noise)
        lengths = None if self.fields is None else self.fields.lengths(self.x_train)
        if lengths is None:
            return order.to(self.device)
        parts = []
        for part in order.split(TOGETHER):
            first = int(torch.randint(len(part), (), generator=noise))
            parts.append(part[lengths.cpu()[part].argsort(stable=True)].roll(first))
        return torch.cat(parts).to(self.device)

    def batches(
        self, seed: int, epoch: int, bounds: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Minibatches of an epoch: numbers of training rows (B,), their inputs and `targets`.

        Arguments:
            seed: Of the order.
            epoch: Whose order it is.
            bounds: Places in that order at which each batch begins and ends, one after the other;
                without the first ones, the epoch is taken up later.
        """
        order = self.order(seed, epoch)
        for start, end in bounds:
            rows = order[start:end]
            yield rows, self.x_train[rows], self.targets[rows]

    @property
    def edges(self) -> Tensor | None:
        """Training rows at which blocks begin that come together in an epoch, and N; None where
        each row comes by itself."""
        return None

    @property
    def marks(self) -> tuple[Tensor, ...]:
        """Tensors by which a fit knows the data again, of which it was a fit."""
        return self.x_train, self.targets, self.x_val, self.y_val

    @property
    def ids(self) -> bool:
        """Inputs are whole numbers to look up in a table of embeddings."""
        return not self._examples.x_train.is_floating_point()

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of "train", "val" or "test".

        Raises:
            DataError: if there is no such split.
        """
        if name not in _SPLITS:
            raise DataError(f"split {name!r} of {self.name}", "'train', 'val' or 'test'")
        return getattr(self, f"x_{name}"), getattr(self, f"y_{name}")

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dataset:
        """The same data with every tensor on `device`, and all but labels of type `dtype`:
        `data.to(dtype=torch.float64)` goes with a network in double precision.

        Raises:
            DataError: for several inputs in a type in which ids would not be exact.
        """
        if self.fields is not None and dtype not in (None, torch.float32, torch.float64):
            raise DataError(f"dtype={dtype} for several inputs", "torch.float32 or torch.float64")
        few = self._examples
        tensors = {one.name: getattr(few, one.name) for one in fields(few)}
        return self.but(**{
            name: value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            for name, value in tensors.items() if isinstance(value, Tensor)
        })  # fmt: skip

    def _inputs_as(self, change: Callable[[Tensor], Tensor]) -> Dataset:
        few = self._examples
        return self.but(**{f"x_{s}": change(getattr(few, f"x_{s}")) for s in _SPLITS})

    def laid_out(self, memory_format: torch.memory_format) -> Dataset:
        """The same data with images, inputs ``(C, H, W)``, in another order of memory."""
        if len(self.input_shape) != 3:
            return self
        return self._inputs_as(lambda x: x.to(memory_format=memory_format))

    def with_val(self, rows: slice) -> Dataset:
        """The same data with these of the validation rows."""
        weights = None if self.val_weights is None else self.val_weights[rows]
        return self.but(x_val=self.x_val[rows], y_val=self.y_val[rows], val_weights=weights)

    def flattened(self) -> Dataset:
        """The same data with each input as one vector; the statistics stay per channel."""
        return self._inputs_as(lambda x: x.flatten(1))

    def all_rows(self) -> Dataset:
        """The same data with the validation rows after those of training, and none to validate:
        for a last fit, when nothing is left to choose. Inputs stay on the scale they had."""
        return self.but(
            x_train=torch.cat([self.x_train, self.x_val]),
            y_train=torch.cat([self.y_train, self.y_val]),
            **joined(self.weights, self.val_weights),
            x_val=self.x_val[:0],
            y_val=self.y_val[:0],
        )

    def halves(self, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two data sets of half of the training rows each, drawn at random; the second has the
        validation rows. Where a certificate is of the second, the first may choose its prior."""
        order = torch.randperm(self.N, generator=torch.Generator().manual_seed(seed))

        def of(rows: Tensor) -> Dataset:
            rows = rows.sort().values.to(self.device)
            weights: dict[str, Any] = {}
            if self.weights is not None and self.val_weights is not None:
                weights = scaled(self.weights[rows], self.val_weights)
            return self.but(x_train=self.x_train[rows], y_train=self.y_train[rows], **weights)

        first, second = order[: self.N // 2], order[self.N // 2 :]
        return of(first).with_val(slice(0)), of(second)

    def statistics(self) -> dict[str, Tensor]:
        """Means and standard deviations by which rows were scaled, `x_mean`, `x_std`, `y_mean` and
        `y_std`, in float64 and in shapes that act on inputs (B, ...) and targets (B, T)."""
        found = self.scaling._asdict()
        x = self._examples.x_train
        return {n: along(s, x) if n[0] == "x" else s for n, s in found.items()}

    def but(self, **changes: Any) -> Dataset:
        """The same data with other values of some attributes, as `dataclasses.replace` has it;
        training rows that are streamed stay where they are."""
        return replace(self, **changes)

    def with_class_weights(self, class_weights: Any = "balanced") -> Dataset:
        """The same data, in which a row counts by the weight of its class too; see
        :func:`pyroccam.data.weighting.by_class`."""
        return self.but(**by_class(self, class_weights))

    def refuse_weights(self, what: str) -> None:
        """Refuse `what` where rows have weights, and it would mean nothing."""
        if self.weighted:
            reason = "rows that count the same: a weighted likelihood is no density of the targets"
            raise DataError(f"{what} of rows with weights", reason)

    def standardised_as(self, other: Dataset) -> Dataset:
        """The same data on the scale of another set, whose network is to predict it.

        Raises:
            DataError: if the inputs differ in shape.
        """
        if self.input_shape != other.input_shape:
            found = f"inputs {self.input_shape} of {self.name}"
            raise DataError(found, f"{other.input_shape}, as in {other.name}")
        own, new = self.scaling, other.scaling
        changed: dict[str, Any] = {}
        for split in _SPLITS:
            x, y = self._examples.split(split)
            changed[f"x_{split}"] = rescale(x, own[:2], new[:2])
            if self.classes is None:
                changed[f"y_{split}"] = rescale(y, own[2:], new[2:])
        stats = {n: getattr(other, n) for n in ("x_mean", "x_std", "y_mean", "y_std", "scaling")}
        return self.but(**changed, **stats)

    record = _record
    differences = _differences

    def seen(self, x: Tensor) -> Tensor:
        """Which rows are training or validation rows as well, bit for bit.

        Arguments:
            x: Inputs (B, ...) on the scale of this data set: its test rows, or those of
                :func:`pyroccam.data.new_rows`.

        Returns:
            Truth values (B,), on the CPU.

        Raises:
            DataError: if the inputs have another size.
        """
        return known_rows(x, [self.x_train, self.x_val])

    def refuse_another_kind(self, expected: Dataset) -> None:
        """Refuse to stand in for data on which a network was trained."""
        kinds = [(d.task, d.input_shape, d.outputs, d.fields) for d in (self, expected)]
        if kinds[0] != kinds[1]:
            raise DataError(f"{self!r}", f"the kind of {expected!r}")

    def _repr_html_(self) -> str:
        what = f"{self.classes} classes" if self.classes else f"{self.outputs} target(s)"
        names = ", ".join(self.class_names if self.class_names else [self.target])
        facts = {
            "task": f"{self.task}: {what} {names}".rstrip(),
            "an input": self.fields or " x ".join(map(str, self.input_shape)),
            **{f"{split} rows": count for split, count in self.counts.items()},
        }
        facts |= {"columns": ", ".join(self.columns)} if self.columns else {}
        return card(f"Dataset {self.name}", facts, following="inference.fit(model, guide, data)")

    def __repr__(self) -> str:
        rows = ", ".join(f"{count} {split}" for split, count in self.counts.items())
        what = f"{self.classes} classes" if self.classes else f"{self.outputs} target(s)"
        shape = f"input {self.fields or ' x '.join(map(str, self.input_shape))}"
        if self.fields is None and len(self.input_shape) == 1:
            shape = f"{self.input_shape[0]} inputs"
        if self.target:
            what = f"{what} of {self.target!r}" if self.classes else f"target {self.target!r}"
        return f"{type(self).__name__}({self.name!r}, {self.task}: {what}, {shape}, rows: {rows})"

    @classmethod
    @checked
    def from_tensors(
        cls,
        x_train: Any,
        y_train: Any,
        x_test: Any,
        y_test: Any,
        *,
        x_val: Any = None,
        y_val: Any = None,
        task: Task | None = None,
        val_fraction: ShareOrZero = 0.1,
        seed: Seed = 0,
        standardise: bool = True,
        name: str = "tensors",
        class_names: str | Sequence[object] = (),
        classes: AtLeastTwo | None = None,
        groups: Any = None,
        columns: Sequence[str] = (),
        target: str = "",
        ids: bool = False,
        weights: Any = None,
    ) -> Dataset:
        """Checks, splits and standardises arrays; nothing that is given is changed.

        Arguments:
            x_train: Inputs (rows, features), sequences (rows, channels, length), images
                (rows, channels, height, width) or volumes, numpy or torch. Bytes
                (rows, height, width) are grey images; others need their one channel: x[:, None].
                Several inputs of a row are a dict of such arrays, by the names of the arguments of
                the network's forward, or a tuple. Those of them that are whole numbers or truth
                values stay that, and are not scaled; an array (rows,) is one number a row.
            y_train: Labels (rows,), numbers or names; or targets (rows,) or (rows, T): amounts,
                counts, or a 0 or 1 for each of T labels.
            x_test: Test inputs, of the same shape but for the rows.
            y_test: Test labels or targets.
            x_val: Validation inputs; None takes `val_fraction` of the training rows.
            y_val: Validation labels or targets.
            task: None takes classification if there are `class_names` or `classes`, or else
                asks the targets (:func:`pyroccam.data.tasks.decide_task`). That they are "counts"
                or "multi-label" has to be said.
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
            columns: One name a feature of a table.
            target: The name of what is predicted.
            ids: Inputs are whole numbers to look up in a table, as torch.nn.Embedding does: words,
                products, nodes. They stay int64, and are not scaled.
            weights: How much each training row counts (rows,), not negative. Only their ratios
                matter: see the attribute. Classes get theirs by :meth:`with_class_weights`.

        Returns:
            The data set, on the CPU.

        Raises:
            DataError: naming the array, the row and the value that cannot be used.
        """
        standardise = standardise and not ids
        called, columns = named(class_names), [*map(str, columns)]
        x: dict[str, Any] = {"train": x_train, "test": x_test}
        y: dict[str, Any] = {"train": y_train, "test": y_test}
        if x_val is not None or y_val is not None:
            x["val"], y["val"] = x_val, y_val
        if all(map(are_names, y.values())) and task != "regression":
            if not called:
                called = np.unique(np.asarray(y_train).astype(str)).tolist()
            y = {s: number_names(f"y_{s}", one, called) for s, one in y.items()}
        fields = None
        if are_several(x_train, y_train):
            if ids:
                raise DataError("ids=True for several inputs", "whole numbers where they are ids")
            fields = Fields.of("x_train", x_train)
            x = {s: fields.pack(f"x_{s}", one) for s, one in x.items()}
        for s in x:
            x[s], y[s] = as_tensor(f"x_{s}", x[s]), as_tensor(f"y_{s}", y[s])
            x[s] = check_rows(s, x[s], y[s], ids=ids, columns=columns, like=x["train"])
        rows, *shape = x["train"].shape
        if rows < 2:
            raise DataError("x_train has 1 row", "at least 2 training rows")
        if columns and shape != [len(columns)]:
            found = f"{len(columns)} columns for inputs of shape {tuple(shape)}"
            raise DataError(found, "one name a feature of a table")
        task = decide_task("y_train", *y.values(), asked=task, classes=called or classes)
        parts = {f"{part}_{s}": of[s] for s in x for part, of in (("x", x), ("y", y))}
        if groups is not None:
            parts["groups"] = number_groups(groups, rows)
        if weights is not None:
            parts["weights"] = weights = check_weights("weights", weights, rows)
        digest = fingerprint(**parts)

        if task == "classification":
            classes = count_classes(check_labels("y_train", y["train"]), classes, called)
        else:
            refuse_classes(task, classes, called)
        y = {s: check_targets(f"y_{s}", one, task, classes) for s, one in y.items()}
        for s, one in y.items():
            if one.shape[1:] != y["train"].shape[1:]:
                expected = f"{y['train'].shape[1]} as in y_train"
                raise DataError(f"y_{s} has {one.shape[1]} target(s) a row", expected)

        given = {part: {f"{part}_{s}": of[s] for s in of} for part, of in (("x", x), ("y", y))}
        if "val" in x:
            train, of_val = torch.arange(rows), torch.ones(len(x["val"]))
        else:
            labels = None if classes is None else y["train"]
            val, train = carve(rows, val_fraction, seed, labels=labels, groups=groups)
            x["val"], y["val"] = x["train"][val], y["train"][val]
            of_val = torch.ones(0) if weights is None else weights[val]
        x["train"], y["train"] = x["train"][train], y["train"][train]
        if fields is not None:  # whole numbers and truth values are not scaled
            each = [one for one in fields.each for _ in range(one.size)]
            amounts = [k for k, one in enumerate(each) if one.kind == "float"]
            judged = {n: one[:, amounts] for n, one in given["x"].items()}
            names = [each[k].name for k in amounts]
            warn_of_wild_cells(name, x["train"][:, amounts], judged, names)
        elif not ids:
            warn_of_wild_cells(name, x["train"], given["x"], columns)
        of_targets = (torch.zeros(1).double(), torch.ones(1).double())
        if classes is None:
            of_targets = _statistics(y["train"], standardise and task == "regression")
            if task == "regression":
                warn_of_wild_cells(name, y["train"], given["y"], [target] if target else ())
        made = on_scale(
            {s: (x[s], y[s]) for s in _SPLITS},
            Scaling(*_statistics(x["train"], standardise, fields), *of_targets),
            # The name of a file may hold bytes that are no text, which nobody could write down.
            name=name.encode("utf-8", "backslashreplace").decode(),
            task=task,
            classes=classes,
            class_names=tuple(called),
            source={
                "name": "tensors",
                "seed": int(seed),
                "val_fraction": val_fraction,
                "standardise": standardise,
                **({"ids": True} if ids else {}),
            },
            columns=tuple(columns),
            target=target,
            digest=digest,
            fields=fields,
        )  # fmt: skip
        return made if weights is None else made.but(**scaled(weights[train], of_val))


def check_rows(
    split: str,
    x: Tensor,
    y: Tensor,
    *,
    ids: bool,
    columns: Sequence[str] = (),
    like: Tensor | None = None,
) -> Tensor:
    """Inputs (B, ...) beside targets, as a data set has them: of the shape of others, grey bytes
    with their channel."""
    check_inputs(f"x_{split}", x, ids=ids, columns=columns)
    check_pair(f"x_{split}", x, f"y_{split}", y)
    x = x if ids else with_channel(x)
    first = x if like is None else like if ids else with_channel(like)
    if x.shape[1:] != first.shape[1:]:
        found = f"x_{split} has inputs of shape {tuple(x.shape[1:])}"
        raise DataError(found, f"{tuple(first.shape[1:])} as in x_train")
    return x


def on_scale(
    rows: Mapping[str, tuple[Tensor, Tensor]],
    scaling: Scaling,
    *,
    classes: int | None,
    source: dict[str, Any],
    **facts: Any,
) -> Dataset:
    """A data set of inputs and targets that were checked, put on a scale.

    Arguments:
        rows: Of each split; none of one without.
        scaling: By which it is done.
        classes, source, facts: As :class:`Dataset` has them.
    """
    scaling, values = scaling_in_force(scaling), dict[str, Any]()
    for split in _SPLITS:
        x, y = rows.get(split) or (part[:0] for part in rows["train"])
        values[f"x_{split}"] = x.long() if source.get("ids") else scale(x, *scaling[:2])
        values[f"y_{split}"] = y.clone() if classes is not None else scale(y, *scaling[2:])
    rounded = {name: statistic.float() for name, statistic in scaling._asdict().items()}
    return Dataset(**values, **rounded, scaling=scaling, classes=classes, source=source, **facts)


def _statistics(
    training: Tensor, wanted: bool, fields: Fields | None = None
) -> tuple[Tensor, Tensor]:
    """Means and scales along dimension 1, in float64."""
    if wanted:
        return moments(training) if fields is None else fields.moments(training)
    width = training.shape[1]
    return torch.zeros(width).double(), torch.ones(width).double()
