"""A certificate of a network: by the length of its file, by its posterior, or by rows aside."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from torch import Tensor, nn

from ...data import Between, Count, Options, Positive, PyroccamError, Seed, checked
from ...models import BayesianNetwork, evaluating, give, seeded
from ...models.layers import convolves
from ..elbo import evidence
from ..files import Small
from ..marginal_likelihood import numbers_of, refuse_improper, refuse_points
from ..posterior import (
    Fit,
    at_once,
    images_at_once,
    mean_network,
    outputs_of,
    require,
    weights_of,
)
from ..shrinking import load
from ..training import FitProgress
from .bounds import binomial_limit, kl_of_shares, seeger_limit, sum_limit

if TYPE_CHECKING:
    from ...data import Dataset
    from ...guides import NetworkGuide
    from ...models.likelihoods import Likelihood

_ROWS = 1024  # in a pass
MOST_PASSES = 16
SCALE_BITS = 9  # of a learnt scale
_DRAWN = 2**32  # numbers that are drawn by default, in a minute or so


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
        bytes: of the file, if it is by that, which has most of the nats.

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
    bytes: int = 0

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
        byte = 8.0 * math.log(2.0)
        own = room - (self.nats - byte * self.bytes)  # for the file alone
        takes = "more rows"
        if self.bytes and byte < own < math.inf:
            takes += f", or a file of {int(own / byte):,} bytes with as few errors,"
        elif self.nats and not self.bytes and 0.0 < room < math.inf:
            takes += f", or a KL of {room:,.0f} nats with as few errors,"
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
    def certify(self, what: Any, rows: _Rows, confidence: float) -> Certificate:
        """The certificate of a fit, or of a small network."""


@dataclass(frozen=True, kw_only=True)
class ByFile(_Way):
    r"""The file of a network is one of ``2^L``, of a code that was fixed before the rows were seen:
    the limit of :func:`~pyroccam.inference.certificates.bounds.binomial_limit` at ``δ 2^{-L}``,
    for all files at once, whatever chose this one. Training and validation rows are counted.

    L has all that was computed from rows and is needed to predict: the file itself, its length in
    front (the code has no end mark), 128 bits for each column that was scaled, the names of the
    classes, the values of columns of text, and the numbers by which a likelihood tells classes from
    outputs. The code of a network that has no description, and defaults of this package that were
    once chosen on the same rows (MNIST's), are not in it.

    References:
        Langford 2005, the Occam's razor bound; Lotfi et al. 2022, PAC-Bayes compression bounds so
        tight that they can explain generalization, arXiv:2211.13609.
    """

    def certify(self, what: Any, rows: _Rows, confidence: float) -> Certificate:
        net, size = _read_back(what)
        for x, y in rows.known():
            rows.add(x, y, rows.misses(_outputs(net, x, rows.data), y, self.within))
        length = 8 * size + 2 * size.bit_length() - 1 + preparation_bits(rows.data)
        length += rows.telling_bits
        nats = length * math.log(2.0)
        found = rows.limit(math.log1p(-confidence) - nats)
        return Certificate(found, confidence, len(rows.missed), rows.share, nats, "network",
                           f"a file of {size:,} bytes", guess_of(rows.data), size)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ByPosterior(_Way):
    """The KL of a posterior over weights, and the errors of networks drawn from it
    (:func:`~pyroccam.inference.certificates.bounds.seeger_limit`). It is about such draws; a
    majority of many is wrong at most twice as often. Half of the doubt is for the draws, each of
    which predicts rows that no other predicts.

    Learnt numbers without a posterior (noise, parameters of a prior, statistics of batch
    normalisation, layers that are not random) are in the KL as they are, with all of their bits,
    and so is what :class:`ByFile` counts for the preparation of rows. What a prior is around
    (``priors.Pretrained``) must be of other rows: the text has its SHA-256, by which that can be
    looked up. The scales of normal priors that were learnt (``priors.Normal(learn="scale")``) are
    rounded to one of 512, 9 bits each.

    Attributes:
        draws: networks, about, by default as many as take a minute or so. More than there are rows
            pass all of them several times, up to 16.
        choices: how many fits this one was chosen from by a look at the rows: seeds, scales of a
            prior, weights of the KL.
        seed: of the draws.
    """

    draws: Count | None = None
    choices: Count = 1
    seed: Seed = 0

    def certify(self, what: Any, rows: _Rows, confidence: float) -> Certificate:
        model, guide = require(what, BayesianNetwork, "inference.certify(by=ByPosterior())")
        refuse_points(what, "a certificate by its posterior")
        refuse_improper(model, given=True)
        left = sum(one.affine.shape.weight.numel() for one in model.layers.values())
        if left < model.weights_before:
            raise PyroccamError("a fit that the same rows have narrowed", "the whole, or a file")
        data = rows.data
        with seeded(self.seed, data.device), rounded_scales(model) as rounded:
            kls = [evidence(model, guide, data, rows=1, passes=2, seed=seed).kl for seed in (0, 1)]
        if not math.isclose(*kls, rel_tol=1e-9):
            raise PyroccamError("a KL that is known by draws alone", "priors whose KL is a formula")
        bits = learnt_bits(model) - (32 - SCALE_BITS) * rounded + preparation_bits(data)
        kl = kls[0] + bits * math.log(2.0)
        doubt = math.log1p(-confidence) - math.log(2.0 * self.choices)
        net = mean_network(model, guide)
        count = data.counts["train"] + data.counts["val"]
        most = self.draws or max(1, _DRAWN // sum(p.numel() for p in net.parameters()))
        each, passes = -(-count // min(count, most)), min(MOST_PASSES, max(1, most // count))
        parts, missed = list[int](), list[Tensor]()
        with (
            evaluating(model), seeded(self.seed, data.device), FitProgress("draws", passes) as bar
        ):  # fmt: skip
            for k in range(passes):
                bar.next(f"pass {k + 1}")
                for x, y in rows.known():
                    found = _drawn_outputs(model, guide, net, x, each)
                    missed.append(rows.misses(torch.cat(found), y, self.within).cpu())
        for x, y in rows.known():
            rows.add(x, y, torch.zeros(len(y), dtype=torch.bool))  # which are copies
            parts += [len(one) for one in y.split(each)]
        wrong = torch.cat(missed).view(passes, count)
        limits = []
        for counted in rows.countings():
            sizes = [size for one in counted.split(parts) if (size := int(one.sum()))]
            share = sum_limit(int((wrong & counted).sum()), passes * sizes, doubt)
            limits.append((seeger_limit(share, sum(sizes), kl, doubt), share))
        limit, share = max(limits)
        by = f"a KL of {kl:,.0f} nats"
        priors = [vars(layer.prior) for layer in model.layers.values()]
        around = {one["around"] for one in priors if "around" in one}
        if around:
            sums = ", ".join(sorted({one.sha256 for one in around}))
            by += f" to weights of SHA-256 {sums}, if these rows did not choose them"
        return Certificate(limit, confidence, count, share, kl, "draws of the posterior",
                           by, guess_of(data))  # fmt: skip

    def drawn(self, fit: Fit, x: Tensor) -> Tensor:
        """Outputs of a network for each row of its own, other ones than those that are counted."""
        model, guide = require(fit, BayesianNetwork, "inference.certify(by=ByPosterior())")
        with evaluating(model), seeded(self.seed + 1, x.device):
            return torch.cat(_drawn_outputs(model, guide, mean_network(model, guide), x, 1))


@dataclass(frozen=True, kw_only=True)
class ByTest(_Way):
    """Test rows, which chose nothing: the limit of
    :func:`~pyroccam.inference.certificates.bounds.binomial_limit` alone, of a network of any size.

    Attributes:
        choices: how many networks were looked at on these rows.
    """

    choices: Count = 1

    def certify(self, what: Any, rows: _Rows, confidence: float) -> Certificate:
        net, data = _network_of(what), rows.data
        if not data.counts["test"]:
            raise PyroccamError("data without test rows", "some that chose nothing")
        for x, y in data.parts("test"):
            rows.add(x, y, rows.misses(_outputs(net, x, data), y, self.within))
        found = rows.limit(math.log1p(-confidence) - math.log(self.choices))
        return Certificate(found, confidence, len(rows.missed), rows.share, 0.0, "network",
                           "test rows, which chose nothing", guess_of(data, "test"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Through(_Way):
    """A large network by a small one that it rarely differs from: the error of the small one and
    the share of other rows, without targets, in which they differ, each at half of the doubt.

    Attributes:
        small: the small network, certified ``by``; a fit, if that is by its posterior: networks
            that are drawn from it, another for each row, are what it then differs from.
        x: inputs ``(M, *)`` that chose neither network, on the scale of the data.
    """

    small: Any
    x: Tensor
    by: ByFile | ByTest | ByPosterior = ByFile()

    def certify(self, what: Any, rows: _Rows, confidence: float) -> Certificate:
        if rows.data.task != "classification" or not len(self.x):
            given = f"{len(self.x)} rows of {rows.data.task}"
            raise PyroccamError(given, "rows of classification, in which two networks may differ")
        halved = 0.5 * (1.0 + confidence)
        if isinstance(self.by, ByPosterior):
            others = self.by.drawn(self.small, self.x)
        else:
            others = _outputs(_network_of(self.small), self.x, rows.data)
        own = _outputs(_network_of(what), self.x, rows.data)
        large, small = (rows.predicted(one).argmax(-1) for one in (own, others))
        base = self.by.certify(self.small, rows, halved)
        differ = int((large != small).sum())
        more = binomial_limit(differ, len(self.x), math.log1p(-halved))
        by = (
            f"another network, from which it differs in {differ:,} of {len(self.x):,} rows; of "
            f"that {base.by}"
        )
        error = min(1.0, base.error + more)
        return replace(base, error=error, confidence=confidence, by=by)


@checked
def certify(
    what: Small | Fit | nn.Module | str | Path,
    data: Dataset,
    *,
    by: _Way | None = None,
    confidence: Annotated[float, Between(0.5, 1.0, "[)")] = 0.95,
    likelihood: Likelihood | None = None,
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
        likelihood: that takes the outputs, of a network alone whose outputs are neither logits of
            classes nor targets.

    Raises:
        PyroccamError: for rows with weights, an improper prior by its posterior, errors without
            bounds (a regression without ``within``), a network for other rows, or a file that was
            changed.

    Example:
        >>> from pyroccam.data import load as load_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> certify(net, load_data("digits")).vacuous
        True
    """
    data.refuse_weights("A certificate")
    if by is None:
        by = ByPosterior() if hasattr(what, "guide") else ByFile()
    if likelihood is None and isinstance(what, Small):
        likelihood = what.likelihood
    elif likelihood is None and hasattr(what, "guide"):
        likelihood = cast(Fit, what).model.likelihood
    return by.certify(what, _Rows(data, likelihood), confidence)


class _Rows:
    """Rows as they are counted.

    Attributes:
        missed: which of them are wrong, booleans ``(n,)``.
    """

    def __init__(self, data: Dataset, likelihood: Likelihood | None) -> None:
        self.data, self._likelihood = data, likelihood
        self._missed: list[Tensor] = []
        self._first: list[bool] = []
        self._seen: set[int] = set()

    def known(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of all that may have chosen a network, part by part."""
        for split in ("train", "val"):
            parts = self.data.parts(split, weighted=False)
            yield from ((x, y) for x, y in parts if len(x))

    @property
    def telling_bits(self) -> int:
        """Bits of what a likelihood has learnt to predict with, which is not in the network."""
        if (like := self._likelihood) is None:
            return 0
        own = [t for name, t in like.state_dict().items() if name not in like.noise]
        return sum(8 * t.element_size() * t.numel() for t in own)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Scores of the classes or targets ``(B, C or T)``, of outputs ``(B, outputs)``."""
        like = self._likelihood
        found = outputs if like is None else like.to(outputs.device).predicted(outputs)
        if found.shape[-1] != self.data.outputs:
            given = f"outputs of shape {tuple(outputs.shape)}"
            raise PyroccamError(given, f"{self.data.outputs} for each row", "likelihood=")
        return found

    def misses(self, outputs: Tensor, y: Tensor, within: float | None) -> Tensor:
        """Which rows ``(B,)`` are wrong, of outputs ``(B, outputs)`` and targets."""
        task = self.data.task
        if task == "classification":
            return self.predicted(outputs).argmax(-1) != y
        if task != "regression" or within is None:
            given = f"{task} without within=" if task == "regression" else task
            raise PyroccamError(f"a certificate of {given}", "right and wrong rows")
        return ((self.predicted(outputs) - y).abs() * self.data.y_std > within).any(-1)

    def add(self, x: Tensor, y: Tensor, missed: Tensor) -> None:
        """Count rows, and find those that are copies of earlier ones."""
        self._missed.append(missed.cpu())
        for row in zip(*(t.cpu().contiguous().numpy() for t in (x, y)), strict=True):
            key = hash(tuple(part.tobytes() for part in row))
            self._first.append(key not in self._seen)
            self._seen.add(key)

    @property
    def missed(self) -> Tensor:
        return torch.cat(self._missed)

    @property
    def share(self) -> float:
        """Of rows that are wrong."""
        return float(self.missed.double().mean())

    def countings(self) -> list[Tensor]:
        """Which rows count, booleans ``(n,)``: all, and where there are copies the first alone."""
        first = torch.tensor(self._first)
        return [torch.ones_like(first), *([] if first.all() else [first])]

    def limit(self, log_delta: float) -> float:
        """The binomial limit, the worse of both ways to count."""
        counts = [(int((self.missed & c).sum()), int(c.sum())) for c in self.countings()]
        return max(binomial_limit(wrong, count, log_delta) for wrong, count in counts)


def _network_of(what: Any) -> nn.Module:
    """The network of a fit's means, of a file or a folder, or what is a network."""
    if isinstance(what, str | Path):
        return load(what)
    if hasattr(what, "guide"):
        return mean_network(*require(what, BayesianNetwork, "inference.certify"))
    return what.net if isinstance(what, Small) else what


def _read_back(what: Any) -> tuple[nn.Module, int]:
    """The network that is read back from a file, and its length in bytes."""
    if isinstance(what, str | Path) and Path(what).is_file():
        return load(what), Path(what).stat().st_size
    small = what if isinstance(what, Small) else Small(_network_of(what))
    with TemporaryDirectory() as folder:
        path = small.save(Path(folder) / "small.pocc")
        return load(path, like=small.net if small.undescribed else None), small.bytes


@torch.no_grad()
def _outputs(net: nn.Module, x: Tensor, data: Dataset) -> Tensor:
    with evaluating(net):
        own = net.to(x.device)
        try:
            return torch.cat([give(own, part, data.fields) for part in x.split(_ROWS)])
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            given = f"a network that does not take the rows of {data.name} ({why:.200})"
            raise PyroccamError(given, "the data that it was trained on") from error


@torch.no_grad()
def _drawn_outputs(
    model: BayesianNetwork, guide: NetworkGuide, net: nn.Module, x: Tensor, each: int
) -> list[Tensor]:
    """Outputs ``(each, outputs)`` of one network after the other, each for rows of its own, of
    which the last may have fewer."""
    found: list[Tensor] = []
    most = at_once(sum(p.numel() for p in net.parameters()), each)
    if convolves(net):
        most = max(1, min(most, images_at_once(x) // each))
    for part in x.split(most * each):
        own = part.split(each)
        alike = [rows for rows in own if len(rows) == each]
        for rows in ([alike] if alike else []) + [[rows] for rows in own[len(alike) :]]:
            weights = weights_of(model, guide.draw(len(rows)))
            found += outputs_of(net, weights, torch.stack(rows), own=True)
    return found


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


@contextmanager
def rounded_scales(model: BayesianNetwork) -> Iterator[int]:
    """Round the logarithms of the scales of normal priors that are learnt, one for a layer, to
    multiples of 1/16 between -16 and 16; how many these are. Put back in the end."""
    priors = {id(layer.prior): layer.prior for layer in model.layers.values()}
    found = [p for own in priors.values() for n, p in own.named_parameters() if n == "log_scale"]
    found = [p for p in found if p.requires_grad and not p.dim() and p.dtype is torch.float32]
    before = [p.detach().clone() for p in found]
    half = 2 ** (SCALE_BITS - 1)
    with torch.no_grad():
        for p in found:
            p.copy_((p * 16.0).round().clamp(-half, half - 1) / 16.0)
        try:
            yield len(found)
        finally:
            for p, value in zip(found, before, strict=True):
                p.copy_(value)


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
