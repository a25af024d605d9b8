"""What is asked of a draw, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ...data import Between, Count, NotNegative, Options, Positive, PyroccamError, Whole

Basis = Literal["weights", "frequencies"]
"""In what weights are independent."""


@dataclass(frozen=True)
class Draw(Options):
    """A draw of a posterior is sent, at about the price of its KL: much smaller than digits, in
    minutes.

    Attributes:
        bytes: of the file, that may not be exceeded. ``None`` for what the KL takes if the
            posterior is the fit's own; or else two bits a weight, or 4,000 bytes where that is
            less.
        out: a folder for checkpoints.
        resume: go on from them.
        progress: show a bar; ``None`` shows it on a terminal only.
        posterior: ``trained``: what is left begins anew under normal priors, and is trained for the
            size; of each block the candidate with the largest weight is sent, as most of what is
            not yet sent makes up for it. ``own``: begin with that of the fit, uncut, whose KL says
            what the file takes; its priors have to be normal, and are sent; candidates are drawn.
        basis: what is independent under prior and posterior: ``weights``, or the ``frequencies``
            of convolutions' kernels, and of rows that read their whole maps, the higher ones of
            which are smaller (:func:`~pyroccam.inference.coding.cosines.cosine_waves`). Better for
            convolutional networks of images, in twice the time.
        bits: of an index; twice the time for each more.
        slack: bits of an index by which the KL of a block is less: more of them bring what is sent
            closer to a draw of the posterior. Blocks of a weight or two, of a KL of many bits
            a weight, are no such draws: ``DrawReport.distance`` shows it.
        epochs: passes over the training rows of each of the two trainings before the first block;
            the posterior of the fit has the second alone, which brings its blocks to equal KLs.
        steps: optimiser steps after each block.
        batch_size: rows in a step.
        lr, coding_lr: learning rates of the trainings, and between blocks.
        shift: pixels by which images ``(C, H, W)`` are moved at random in every step, where that
            changes no label. A budget of bits does not keep a posterior from learning the training
            rows by heart; more of them do.
        seed: of the candidates, the blocks, the order of the rows and the noise.
    """

    bytes: Count | None = None
    out: str | Path | None = None
    resume: bool = False
    progress: bool | None = None
    posterior: Literal["trained", "own"] = "trained"
    basis: Basis = "weights"
    bits: Annotated[int, Between(2, 20)] = 14
    slack: NotNegative = 1.0
    epochs: Count = 20
    steps: Whole = 10
    batch_size: Count = 256
    lr: Positive = 3e-3
    coding_lr: Positive = 1e-2
    shift: Whole = 0
    seed: Annotated[int, Between(0, 2**20)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack >= self.bits:
            raise PyroccamError(f"slack={self.slack}", f"less than bits={self.bits}")
        if self.posterior == "own" and self.basis != "weights":
            raise PyroccamError(f"basis={self.basis!r} of a fit's own posterior", "'weights'")


@dataclass(frozen=True)
class DrawReport:
    """What a draw that was sent took.

    Attributes:
        file_bytes: of the file.
        kl: of all blocks when they were coded, in bits.
        index_bits: bits of all indices.
        distance: mean squared distance of the weights to the means of the posterior, in variances;
            1 for a draw of the posterior.
        weights, blocks: how many.
    """

    file_bytes: int
    kl: float
    index_bits: int
    distance: float
    weights: int
    blocks: int

    @property
    def over_kl(self) -> float:
        """Bits of the file over the KL in bits."""
        return 8 * self.file_bytes / self.kl

    def to_json(self) -> dict[str, Any]:
        """The numbers for a result file."""
        found = {**vars(self), "over_kl": self.over_kl}
        return {"kl_bits" if name == "kl" else name: value for name, value in found.items()}
