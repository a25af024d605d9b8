"""A certificate of a network: by the length of its file, by its posterior, or by rows aside."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...data import Between, Count, Options, Positive, PyroccamError, Seed, checked
from ...models import BayesianNetwork, evaluating, give, seeded
from ..elbo import evidence
from ..files import Small
from ..marginal_likelihood import numbers_of, refuse_improper, refuse_points
from ..posterior import Fit, at_once, chunks, draw_sites, mean_network, require, weights_of
from ..shrinking import load
from .bounds import binomial_limit, kl_of_shares, seeger_limit, sum_limit

if TYPE_CHECKING:
    from ...data import Dataset

_ROWS = 1024  # in a pass
_DRAWN = 2**33  # numbers that are drawn by default, in a minute or so


@dataclass(frozen=True)
class Certificate:
    """What is certain of rows that nobody has seen, if they come from where the known ones came.

    Attributes:
        error: at most this share of new rows is wrong, with a certainty of ``confidence``.
        confidence: of the statement, over the draw of the known rows.
        rows: n, that it is about.
        wrong: the share of them that is wrong; of draws from a posterior its upper limit.
        nats: what the network costs, beside ``confidence``: the length of its file, or the KL.
        of: what it is a statement about.
        by: where it comes from.
        guess: the share of the known rows that are wrong where the answer is always the same.

    Example:
        >>> print(Certificate(0.098, 0.95, 900, 0.02, 50.0, "network", "a file of 9 bytes"))
        With 95 % certainty at most 9.8 % of new rows are wrong (a file of 9 bytes; 900 rows, 2.00 \
% of them wrong).
    """

    error: float
    confidence: float
    rows: int
    wrong: float
    nats: float
    of: str
    by: str
    guess: float = 1.0

    @property
    def vacuous(self) -> bool:
        """No better than the same answer to every row."""
        return self.error >= self.guess

    def sentences(self) -> list[str]:
        """What is certain; of a vacuous one what it would take."""
        whose = "" if self.of == "network" else f", predicted by {self.of},"
        said = (
            f"With {100 * self.confidence:g} % certainty at most {100 * self.error:.3g} % of new "
            f"rows{whose} are wrong ({self.by}; {self.rows:,} rows, {100 * self.wrong:.2f} % of "
            "them wrong)."
        )
        if not self.vacuous:
            return [said]
        always = f"the same answer to all is wrong in {100 * self.guess:.3g} % of these"
        if self.wrong >= self.guess:
            return [said, f"That says nothing: {always}, the network in no fewer."]
        room = self.rows * kl_of_shares(self.wrong, self.guess) + math.log1p(-self.confidence)
        if not self.nats:
            return [said, f"That says nothing: {always}; more rows would."]
        bytes_ = max(0, int(room / math.log(2.0) / 8.0))
        takes = f"{bytes_:,} bytes ({room:,.0f} nats) or fewer with as few errors, or more rows,"
        return [said, f"That says nothing: {always}; {takes} would."]

    def __str__(self) -> str:
        return " ".join(self.sentences())

    def to_json(self) -> dict[str, Any]:
        """The numbers for a result file."""
        return {**vars(self), "vacuous": self.vacuous}


@dataclass(frozen=True, kw_only=True)
class _Way(Options):
    """How an error is certified.

    Attributes:
        within: of a regression: a row is wrong if a target is farther from what is predicted than
            this, in units of the target; decided before the rows were seen.
    """

    within: Positive | None = None

    @abstractmethod
    def certify(self, what: Any, data: Dataset, confidence: float) -> Certificate:
        """The certificate of a fit, or of a small network."""

    def misses(self, outputs: Tensor, y: Tensor, data: Dataset) -> Tensor:
        """Which rows ``(B,)`` are wrong, of outputs ``(B, outputs)`` and targets."""
        if data.task == "classification":
            return outputs.argmax(-1) != y
        if data.task != "regression" or self.within is None:
            given = f"{data.task} without within=" if data.task == "regression" else data.task
            raise PyroccamError(f"a certificate of {given}", "right and wrong rows")
        off = (outputs[..., : y.shape[-1]] - y).abs() * data.y_std
        return (off > self.within).any(-1)


@dataclass(frozen=True, kw_only=True)
class ByFile(_Way):
    r"""The file of a network is one of ``2^L``, of a code that was fixed before the rows were seen:
    the limit of :func:`~pyroccam.inference.certificates.bounds.binomial_limit` at ``δ 2^{-L}``,
    for all files at once, whatever chose this one. Training and validation rows are counted.

    L has all that was computed from rows and is needed to predict: the file itself, its length in
    front (the code has no end mark), 128 bits for each column that was scaled, the names of the
    classes and the values of columns of text. Defaults of this package that were once chosen on the
    same rows (MNIST's) are not in it.

    References:
        Langford 2005, the Occam's razor bound; Lotfi et al. 2022, PAC-Bayes compression bounds so
        tight that they can explain generalization, arXiv:2211.13609.
    """

    def certify(self, what: Any, data: Dataset, confidence: float) -> Certificate:
        net, size = _written(what)
        length = 8 * size + 2 * size.bit_length() - 1 + preparation_bits(data)
        counted = _Count()
        for x, y in known(data):
            counted.add(x, y, self.misses(_outputs(net, x, data), y, data))
        nats = length * math.log(2.0)
        found = counted.limit(math.log1p(-confidence) - nats)
        return Certificate(found, confidence, counted.rows, counted.share, nats, "network",
                           f"a file of {size:,} bytes", guess_of(data))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ByPosterior(_Way):
    """The KL of a posterior over weights, and the errors of networks drawn from it
    (:func:`~pyroccam.inference.certificates.bounds.seeger_limit`). It is about such draws; a
    majority of many is wrong at most twice as often. Half of the doubt is for the draws, each of
    which predicts rows that no other predicts.

    Learnt numbers without a posterior (noise, parameters of a prior, statistics of batch
    normalisation, layers that are not random) are in the KL as they are, with all of their bits,
    and so is what :class:`ByFile` counts for the preparation of rows.

    Attributes:
        draws: networks; one for each row by default, or as many as take a minute or so.
        choices: how many fits this one was chosen from by a look at the rows: seeds, scales of a
            prior.
        seed: of the draws.
    """

    draws: Count | None = None
    choices: Count = 1
    seed: Seed = 0

    def certify(self, what: Any, data: Dataset, confidence: float) -> Certificate:
        model, guide = require(what, BayesianNetwork, "inference.certify(by=ByPosterior())")
        refuse_points(what, "a certificate by its posterior")
        refuse_improper(model, given=True)
        passes = [evidence(model, guide, data, rows=1, passes=2, seed=s).kl for s in (0, 1)]
        if not math.isclose(*passes, rel_tol=1e-9):
            raise PyroccamError("a KL that is known by draws alone", "priors whose KL is a formula")
        kl = passes[0] + (learnt_bits(model) + preparation_bits(data)) * math.log(2.0)
        doubt = math.log1p(-confidence) - math.log(2.0 * self.choices)
        rows = data.counts["train"] + data.counts["val"]
        numbers = sum(p.numel() for p in mean_network(model, guide).parameters())
        most = self.draws or max(1, _DRAWN // numbers)
        sizes = [rows // min(rows, most)] * min(rows, most)
        sizes = [size + (place < rows - sum(sizes)) for place, size in enumerate(sizes)]
        share = sum_limit(self._wrong(model, guide, data, sizes), sizes, doubt)
        found = seeger_limit(share, rows, kl, doubt)
        return Certificate(found, confidence, rows, share, kl, "draws of the posterior",
                           f"a KL of {kl:,.0f} nats", guess_of(data))  # fmt: skip

    @torch.no_grad()
    def _wrong(self, model: Any, guide: Any, data: Dataset, sizes: list[int]) -> int:
        """Wrong rows, where each network predicts as many as ``sizes`` say."""
        net, wrong, start = mean_network(model, guide), 0, 0
        xs, ys = (torch.cat([*parts]) for parts in zip(*known(data), strict=True))
        numbers = sum(p.numel() for p in net.parameters())

        def outputs(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return cast(Tensor, functional_call(net, weights, (x,)))

        together = vmap(outputs, randomness="different")
        with evaluating(model), seeded(self.seed, data.device):
            for count in chunks(len(sizes), at_once(numbers, max(sizes))):
                weights = weights_of(model, draw_sites(model, guide, count))
                own, sizes = sizes[:count], sizes[count:]
                ends = torch.tensor(own).cumsum(0) + start
                # Networks that predict a row less see one of the next twice, which is not counted.
                places = (ends - torch.tensor(own))[:, None] + torch.arange(max(own))
                counted = places < ends[:, None]
                places = places.clamp(max=len(xs) - 1)
                found = together(weights, xs[places.to(xs.device)])
                missed = self.misses(found, ys[places.to(ys.device)], data)
                wrong += int((missed.cpu() & counted).sum())
                start = int(ends[-1])
        return wrong


@dataclass(frozen=True, kw_only=True)
class ByTest(_Way):
    """Test rows, which chose nothing: the limit of
    :func:`~pyroccam.inference.certificates.bounds.binomial_limit` alone, of a network of any size.

    Attributes:
        choices: how many networks were looked at on these rows.
    """

    choices: Count = 1

    def certify(self, what: Any, data: Dataset, confidence: float) -> Certificate:
        net, counted = _plain(what), _Count()
        for x, y in data.parts("test"):
            counted.add(x, y, self.misses(_outputs(net, x, data), y, data))
        if not counted.rows:
            raise PyroccamError("data without test rows", "some that chose nothing")
        found = counted.limit(math.log1p(-confidence) - math.log(self.choices))
        return Certificate(found, confidence, counted.rows, counted.share, 0.0, "network",
                           "test rows, which chose nothing", guess_of(data, "test"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Through(_Way):
    """A large network by a small one that it rarely differs from: the error of the small one and
    the share of other rows, without targets, in which they differ, each at half of the doubt.

    Attributes:
        small: the small network, certified ``by``.
        x: inputs ``(M, *)`` that chose neither network, on the scale of the data.
    """

    small: Any
    x: Tensor
    by: _Way = ByFile()

    def certify(self, what: Any, data: Dataset, confidence: float) -> Certificate:
        halved = 0.5 * (1.0 + confidence)
        base = self.by.certify(self.small, data, halved)
        large, small = (_outputs(_plain(one), self.x, data) for one in (what, self.small))
        differ = int((large.argmax(-1) != small.argmax(-1)).sum())
        if data.task != "classification":
            raise PyroccamError(f"networks that differ, of {data.task}", "classification")
        more = binomial_limit(differ, len(self.x), math.log1p(-halved))
        differs = f"another network, from which it differs in {differ:,} of {len(self.x):,} rows"
        return replace(base, error=min(1.0, base.error + more), confidence=confidence,
                       by=f"{differs}, and {base.by}")  # fmt: skip


@checked
def certify(
    what: Small | Fit | nn.Module | str | Path,
    data: Dataset,
    *,
    by: _Way | None = None,
    confidence: Annotated[float, Between(0.5, 1.0, "[)")] = 0.95,
) -> Certificate:
    """What is certain of the errors of a network on new rows, if they come from where those of
    ``data`` came.

    Arguments:
        what: a small network, its file or folder, a plain network, or a fit.
        data: that it was trained on, with all rows that had a part in it; rows that were copied,
            by an oversampler say, are found and counted once where that is worse. Of a prior that
            was learnt on other rows (half of them), the rows that it has not seen.
        by: :class:`ByFile` by default, of a fit :class:`ByPosterior`; or :class:`ByTest`, or
            :class:`Through`.
        confidence: of the statement.

    Raises:
        PyroccamError: for rows with weights, an improper prior by its posterior, errors without
            bounds (a regression without ``within``), or a file that was changed.

    Example:
        >>> from pyroccam.data import load as load_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> certify(net, load_data("digits")).vacuous
        True
    """
    data.refuse_weights("A certificate")
    if by is None:
        by = ByPosterior() if hasattr(what, "guide") else ByFile()
    return by.certify(what, data, confidence)


def _plain(what: Any) -> nn.Module:
    """The network of a fit's means, of a file or a folder, or what is a network."""
    if isinstance(what, str | Path):
        return load(what)
    if hasattr(what, "guide"):
        return mean_network(*require(what, BayesianNetwork, "inference.certify"))
    return what.net if isinstance(what, Small) else what


def _written(what: Any) -> tuple[nn.Module, int]:
    """The network that is read back from a file, and its length in bytes."""
    if isinstance(what, str | Path) and Path(what).is_file():
        return load(what), Path(what).stat().st_size
    small = what if isinstance(what, Small) else Small(_plain(what))
    with TemporaryDirectory() as folder:
        path = small.save(Path(folder) / "small.pocc")
        return load(path, like=small.net if small.undescribed else None), small.bytes


@torch.no_grad()
def _outputs(net: nn.Module, x: Tensor, data: Dataset) -> Tensor:
    net = net.to(x.device).eval()
    return torch.cat([give(net, part, data.fields) for part in x.split(_ROWS)])


def known(data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of all rows that may have chosen a network, part by part."""
    for split in ("train", "val"):
        yield from data.parts(split, weighted=False)


class _Count:
    """Rows, and how many of them are wrong; and both again without copies of earlier rows."""

    def __init__(self) -> None:
        self.rows = self.wrong = self.own_rows = self.own_wrong = 0
        self.seen: set[int] = set()

    @property
    def share(self) -> float:
        return self.wrong / max(self.rows, 1)

    def add(self, x: Tensor, y: Tensor, missed: Tensor) -> None:
        xs, ys = (t.cpu().contiguous().flatten(1 if t.ndim > 1 else 0).numpy() for t in (x, y))
        for row, target, miss in zip(xs, ys, missed.tolist(), strict=True):
            self.rows, self.wrong = self.rows + 1, self.wrong + miss
            key = hash((row.tobytes(), target.tobytes()))
            if key not in self.seen:
                self.seen.add(key)
                self.own_rows, self.own_wrong = self.own_rows + 1, self.own_wrong + miss

    def limit(self, log_delta: float) -> float:
        counts = {(self.wrong, self.rows), (self.own_wrong, self.own_rows)}
        return max(binomial_limit(wrong, rows, log_delta) for wrong, rows in counts)


def preparation_bits(data: Dataset) -> int:
    """Bits of what was computed from rows before a network saw them: a mean and a deviation in
    double precision for each column and target that was scaled; texts, and names of classes, unless
    they are of a set with a name, such as "mnist"."""
    scaling = data.scaling
    pairs = ((scaling.x_mean, scaling.x_std), (scaling.y_mean, scaling.y_std))
    scaled = sum(int(((mean != 0.0) | (std != 1.0)).sum()) for mean, std in pairs)
    named = (
        data.source["name"] != "tensors" and data.source["name"].replace("-", "_").isidentifier()
    )
    texts = [*(() if named else data.class_names), *chain(*data.categories.values())]
    return 128 * scaled + 8 * len("\n".join(texts).encode())


def learnt_bits(model: Any) -> int:
    """Bits of the numbers of a model that were learnt and have no posterior, as they are stored."""
    stored = [p for p in model.parameters() if p.requires_grad]
    stored += [b for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))]
    priors = sum(numbers_of(layer.latents()[name].prior) for layer, name in model.sites.values())
    return sum(8 * t.element_size() * t.numel() for t in stored) + 32 * priors


def guess_of(data: Dataset, split: str = "train") -> float:
    """The share of rows that are wrong if the most frequent class is always the answer."""
    if data.classes is None:
        return 1.0
    counts = torch.zeros(data.classes)
    for _, y in data.parts(split, weighted=False):
        counts += torch.bincount(y.cpu(), minlength=data.classes)
    return 1.0 - float(counts.max() / counts.sum())
