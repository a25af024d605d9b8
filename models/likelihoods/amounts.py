"""Likelihoods of a regression: errors of one size, of a size for each input, or with outliers."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import AtLeastTwo, Between, Count, NotNegative, Positive, PyroccamError, checked
from ..networks import PRIOR_ROWS, closed_form_of, with_closed_form
from .base import Likelihood

_LEAST_DF, _MOST_DF = 2.0, 100.0
Freedom = Annotated[float, Between(_LEAST_DF, _MOST_DF, "()")]


class Regression(Likelihood):
    r"""``Normal(outputs, σ)`` with a learnt σ for each target, shared by all inputs and depths.

    Targets ``(B, T)``, standardised. σ = floor + exp(log_scale): the floor keeps the density of
    an interpolating network finite.

    Arguments:
        targets: T.
        scale: σ at the start, in standard deviations of the target.
        floor: smallest σ (Antoran et al. 2020, arXiv:2006.08437, use 1e-4).
    """

    task = "regression"
    word = "normal"
    noise: ClassVar[tuple[str, ...]] = ("log_scale",)

    @checked
    def __init__(self, targets: Count, scale: Positive = 0.5, floor: NotNegative = 1e-3) -> None:
        super().__init__()
        if floor >= scale:
            raise PyroccamError(
                f"{type(self).__name__}: floor={floor}", f"less than the scale, {scale}"
            )
        self.outputs = targets
        self.floor = floor
        self.log_scale = nn.Parameter(torch.full((targets,), math.log(scale - floor)))

    def arguments(self) -> dict[str, int]:
        return {"targets": self.outputs}

    @property
    def scale(self) -> Tensor:
        """σ, ``(T,)``, in units of the standardised target."""
        return self.floor + self.log_scale.exp()

    def normal_scale(self) -> Tensor | None:
        return self.scale if type(self).forward is Regression.forward else None

    @torch.no_grad()
    def begin_noise(self, error: Tensor) -> None:
        self.log_scale.copy_((error - self.floor).clamp_min(1e-8).log())

    def noise_margin(self) -> Tensor:
        r"""``2 Σ log σ``: for N rows and normal errors, the σ² of most density is then their sum of
        squares by N - 2. Of all multiples of that sum it has the least expected loss on a new row.
        """
        return 2.0 * self.scale.log().sum()

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Normal(outputs, self.scale).to_event(1)

    @property
    def teaches(self) -> bool:
        return type(self).forward is Regression.forward

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs if type(self).forward is Regression.forward else super().predicted(outputs)

    def mean_prediction(self, outputs: Tensor) -> Tensor:
        return outputs.mean(0)


class StudentT(Regression):
    r"""``StudentT(ν, outputs, σ)``: errors of which some are outliers, with a learnt σ and a learnt
    number of degrees of freedom ν for each target.

    ν lies between 2, above which a target has a variance, ``σ² ν / (ν - 2)``, by which bands are
    drawn, and 100, where errors are all but normal and single precision still tells their density.

    Arguments:
        targets: T.
        scale, floor: of σ, as for :class:`Regression`.
        df: ν at the start.

    References:
        Lange, Little, Taylor 1989, Robust statistical modeling using the t distribution.
    """

    word = "student-t"
    noise = ("log_scale", "logit_df")
    scores = ("mae", "coverage")

    @checked
    def __init__(
        self, targets: Count, scale: Positive = 0.5, floor: NotNegative = 1e-3, df: Freedom = 8.0
    ) -> None:
        super().__init__(targets, scale, floor)
        self.logit_df = nn.Parameter(torch.full((targets,), _logit(df)))

    @property
    def df(self) -> Tensor:
        """ν, ``(T,)``."""
        return _LEAST_DF + (_MOST_DF - _LEAST_DF) * self.logit_df.sigmoid()

    @torch.no_grad()
    def begin_noise(self, error: Tensor) -> None:
        super().begin_noise(error)
        self.logit_df.fill_(_logit(8.0))

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.StudentT(self.df, outputs, self.scale).to_event(1)

    def below(self, outputs: Tensor, y: Tensor) -> Tensor:
        return _below(self.df, (y - outputs) / self.scale)


class Heteroscedastic(Likelihood):
    r"""``Normal(m(x), σ(x))``: the first T outputs are means, the other T say how large errors are.

    .. math:: σ^2(x) = \mathrm{floor}^2 + e^{s(x)}

    At s = 0 errors are as large as the targets vary. Nothing of the noise is a number of its own:
    it is learnt as the network is, and judged on validation rows with it.

    Arguments:
        targets: T, of 2T outputs.
        floor: smallest σ, in standard deviations of the target; without it the density at a row
            that is met exactly has no bound.

    References:
        Nix, Weigend 1994, Estimating the mean and variance of the target probability distribution.
    """

    task = "regression"
    word = "heteroscedastic"
    scores = ("coverage",)

    @checked
    def __init__(self, targets: Count, floor: Positive = 1e-2) -> None:
        super().__init__()
        self.targets, self.outputs, self.floor = targets, 2 * targets, floor

    def arguments(self) -> dict[str, int]:
        return {"targets": self.targets}

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        mean, log_variance = outputs.chunk(2, -1)
        scale = (self.floor**2 + log_variance.exp()).sqrt()
        return dist.Normal(mean, scale).to_event(1)


class Embedding(Likelihood):
    r"""``Normal(u / |u|, 1)`` of outputs u: directions, as embeddings of texts are, of which
    similarities are cosines.

    Targets ``(B, T)`` have length one and are as they were given, so that a row costs
    :math:`1 - \cos(u, y)` nats more than one that is met.

    Arguments:
        targets: T, at least 2.
    """

    task = "regression"
    word = "embedding"
    has_noise = False  # a nat is a unit of direction
    scores = ("similarity",)

    @checked
    def __init__(self, targets: AtLeastTwo) -> None:
        super().__init__()
        self.outputs = targets

    def arguments(self) -> dict[str, int]:
        return {"targets": self.outputs}

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Normal(nn.functional.normalize(outputs, dim=-1), 1.0).to_event(1)

    @property
    def teaches(self) -> bool:
        return type(self).forward is Embedding.forward

    def mean_prediction(self, outputs: Tensor) -> Tensor:
        """A direction, ``(*batch, T)``: the mean of those of the networks, of length one."""
        directions = nn.functional.normalize(outputs, dim=-1)
        return nn.functional.normalize(directions.mean(0), dim=-1)


class ClosedForm(Regression):
    r"""Student's t of a last layer that was integrated out, with the noise.

    The network ends in a :class:`~pyroccam.models.networks.ClosedFormLinear`, whose T means and T
    squared scales it takes; its last linear layer, of 2T outputs, goes. While features are learnt,
    errors are normal, with a σ as in :class:`Regression`. Wherever they are looked at, the last
    layer is the posterior of the validation rows, which judge depths and checkpoints by their
    evidence: nothing is left that a network which learns rows by heart could make too sure.

    Arguments:
        targets: T.
        scale, floor: of σ in training, as for :class:`Regression`; the prior of the noise expects
            what was learnt.
    """

    word = "closed-form"
    noise = ()
    scores = ("coverage",)
    own_head = True
    df: Tensor

    @checked
    def __init__(self, targets: Count, scale: Positive = 0.5, floor: NotNegative = 1e-3) -> None:
        super().__init__(targets, scale, floor)
        self.targets, self.outputs = targets, 2 * targets
        self.register_buffer("df", torch.tensor(PRIOR_ROWS))

    def arguments(self) -> dict[str, int]:
        return {"targets": self.targets}

    def headed(self, net: nn.Module, depths: int = 1) -> nn.Module:
        return with_closed_form(net, self.targets, depths)

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        mean, log_scale = outputs.chunk(2, -1)
        if self.training:
            return dist.Normal(mean, self.scale).to_event(1)
        scale = (0.5 * log_scale.double()).exp()  # and Γ of many rows, which cancels
        return dist.StudentT(self.df.double(), mean.double(), scale).to_event(1)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs[..., : self.targets]

    @torch.no_grad()
    def left_out(
        self, net: nn.Module, outputs: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        r"""With :math:`h = φ S^{-1} φ^T`, a weight u of the row and :math:`e = y - φ (w_0 + m)`,

        .. math:: y - \hat y = \frac{e}{1 - u h}, \quad b = b_n - \frac u2, \quad
                  c = c_n - \frac{u e^2}{2 (1 - u h)}, \quad \hat h = \frac{h}{1 - u h}.

        Degrees of freedom stay :math:`2 b_n`, for :math:`2 b`: of n rows that is 1 / 4n nats.

        References:
            Rasmussen, Williams 2006, Gaussian Processes for Machine Learning, 5.4.2.
        """
        head = closed_form_of(net)
        assert head is not None
        known, half = head.log_scale.double(), 0.5 * self.df.double()
        u = torch.ones_like(y[:, :1]).double() if weights is None else weights.double()[:, None]
        mean, log_scale = outputs.double().chunk(2, -1)
        h = (log_scale - known).expm1()
        rest = (1.0 - u * h).clamp_min(1e-6)
        error = (y.double() - mean) / rest
        c = (known.exp() * half - 0.5 * u * error.square() * rest).clamp_min(1e-12)
        log_scale = (c / (half - 0.5 * u)).log() + (h / rest).log1p()
        return torch.cat([y.double() - error, log_scale], -1).to(outputs)

    def below(self, outputs: Tensor, y: Tensor) -> Tensor:
        made = self(outputs).base_dist
        return _below(self.df, (y - made.loc) / made.scale).to(outputs)


def _logit(df: float) -> float:
    return math.log(df - _LEAST_DF) - math.log(_MOST_DF - df)


def _below(df: Tensor, z: Tensor) -> Tensor:
    from scipy.special import stdtr  # torch has no incomplete beta function

    found = stdtr(df.detach().double().cpu().numpy(), z.detach().double().cpu().numpy())
    return torch.from_numpy(found).to(z)
