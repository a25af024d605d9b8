"""What is asked of a draw, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...data.errors import PyroccamError
from ...models.checks import one_of, positive
from ..storage.whole import write_whole

__all__ = ["WIDEST", "CodeWord", "Drawn", "Sample"]

WIDEST = 20
"""Bits of an index at most."""

CodeWord = Literal["minimal-random", "ordered-random", "a-star"]
"""Codes of draws, of :data:`~pyroccam.inference.relative_entropy.CODES`."""


@dataclass(frozen=True)
class Sample:
    """How a draw is coded.

    Attributes:
        posterior: ``trained``: what is left begins anew under normal priors, and is trained for the
            size. ``own``: begin with that of the fit, uncut, whose KL says what the file takes; its
            priors have to be normal, and are sent.
        size: of the file, in bytes, that may not be exceeded. ``None`` for what the KL takes if the
            posterior is the fit's own; or else two bits a weight, or 4,000 bytes where that is
            less.
        code: ``minimal-random``, ``ordered-random`` or ``a-star``
            (:data:`~pyroccam.inference.relative_entropy.CODES`). The size is kept by the first,
            whose indices have a fixed length; the others are told the same KL, and take what they
            take.
        bits: of an index; twice the time for each more. The others look at 2^bits candidates.
        slack: bits of an index by which the KL of a block is less: more of them bring what is sent
            closer to a draw of the posterior. Blocks of a weight or two, of a KL of many bits
            a weight, are no such draws: ``Drawn.distance`` shows it.
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

    posterior: Literal["trained", "own"] = "trained"
    size: int | None = None
    code: CodeWord = "minimal-random"
    bits: int = 14
    slack: float = 1.0
    epochs: int = 20
    steps: int = 10
    batch_size: int = 256
    lr: float = 3e-3
    coding_lr: float = 1e-2
    shift: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("Sample(posterior)", self.posterior, ("trained", "own"))
        one_of("Sample(code)", self.code, ("minimal-random", "ordered-random", "a-star"))
        for name, least, most in (
            ("bits", 2, WIDEST), ("epochs", 1, 10**6), ("steps", 0, 10**6),
            ("batch_size", 1, 10**9), ("shift", 0, 100), ("seed", 0, 2**20),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise PyroccamError(
                    f"Sample({name}) must be a whole number from {least} to {most}, got {value!r}."
                )
        positive("Sample(lr)", self.lr)
        positive("Sample(coding_lr)", self.coding_lr)
        if not 0 <= self.slack < self.bits:
            raise PyroccamError(
                f"Sample(slack) must be from 0 to less than bits={self.bits}, got {self.slack}."
            )


@dataclass(frozen=True)
class Drawn:
    """A network that was sent.

    Attributes:
        net: as the file gives it, plain, in evaluation mode, on the CPU.
        content: the file.
        kl: of all blocks when they were coded, in bits.
        index_bits: bits of all indices.
        distance: mean squared distance of the weights to the means of the posterior, in variances;
            1 for a draw of the posterior.
        weights, blocks: how many.
    """

    net: nn.Module
    content: bytes
    kl: float
    index_bits: int
    distance: float
    weights: int
    blocks: int

    @property
    def over_kl(self) -> float:
        """Bits of the file over the KL in bits."""
        return 8 * len(self.content) / self.kl

    def write(self, path: str | Path) -> None:
        """Write the file; :func:`pyroccam.inference.draw_coding.read` reads it."""
        write_whole(Path(path), lambda file: file.write(self.content))

    def to_json(self) -> dict[str, Any]:
        """The numbers for a result file."""
        return {
            "file_bytes": len(self.content), "kl_bits": self.kl, "index_bits": self.index_bits,
            "over_kl": self.over_kl, "distance": self.distance, "weights": self.weights,
            "blocks": self.blocks,
        }  # fmt: skip
