"""The network after cutting: a plain torch module."""

from __future__ import annotations

import copy
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ..likelihoods import Classification, Likelihood, Regression
from ..networks import DepthStack
from .own_classes import torch_only

Form = Literal["marginal", "single"]
"""An average over the exits of all depths that are kept, or one exit alone."""


class PrunedNetwork(nn.Module):
    """Predicts with the first blocks of a stack; there is no Pyro in it.

    Arguments:
        stack: with all its depths; what is needed is copied.
        depth: the deepest block that is kept.
        weights: over the depths 0 ... ``depth`` (marginal form), ``(depth + 1,)``; ``None`` for
            the single-exit form, which computes the exit of ``depth`` alone.
        likelihood: says what the outputs mean; the noise of a normal regression is kept as a
            buffer, and any other likelihood is copied.

    Pickled it becomes a :class:`torch.fx.GraphModule` of torch alone, which computes the same with
    the same tensors.

    The forward pass gives log-probabilities ``(B, C)`` for classification (in single-exit form
    they serve as logits too: a softmax leaves them as they are) and the predictive mean ``(B, T)``
    for other tasks.
    """

    log_weights: Tensor
    scale: Tensor | None
    likelihood: Likelihood | None

    def __init__(
        self, stack: DepthStack, depth: int, weights: Tensor | None, likelihood: Likelihood
    ) -> None:
        super().__init__()
        self.form: Form = "single" if weights is None else "marginal"
        self.depth = depth
        self.task = likelihood.task
        self.outputs = likelihood.outputs
        self.net: nn.Module = stack.at(depth) if weights is None else stack.truncated(depth)
        if weights is None:
            weights = torch.ones(1)
        elif weights.shape != (depth + 1,):
            raise PyroccamError(f"{tuple(weights.shape)} weights of depths", f"({depth + 1},)")
        like = next(stack.parameters())
        log_weights = weights.double().log().clamp_min(-1e4)  # finite: a depth of weight 0 is legal
        self.register_buffer("log_weights", log_weights.to(like))
        noise = likelihood.scale.detach().clone() if type(likelihood) is Regression else None
        self.register_buffer("scale", noise)
        known = type(likelihood) in (Classification, Regression)
        self.likelihood = None if known else copy.deepcopy(likelihood)
        description = None if stack.description is None else {**stack.description}
        self.description: dict[str, Any] = {
            "format": 1,
            "form": self.form,
            "depth": depth,
            "task": self.task,
            "outputs": self.outputs,
            "stack": description,
        }
        if self.likelihood is not None:
            self.description["likelihood"] = type(likelihood).__name__
            self.description["arguments"] = likelihood.arguments()
        self.eval()

    def components(self, x: Tensor) -> Tensor:
        """Raw outputs of every depth that is kept, ``(S, B, outputs)``; S = 1 in single form."""
        if isinstance(self.net, DepthStack):
            return self.net.outputs(x)
        return cast(Tensor, self.net(x))[None]

    def forward(self, x: Tensor) -> Tensor:
        out = self.components(x)
        if self.likelihood is not None:
            out = self.likelihood.predicted(out)
        if self.task == "classification":
            log_probs = out.log_softmax(-1)
            if self.form == "single" or not self.depth:
                return log_probs[0]
            return torch.logsumexp(self.log_weights[:, None, None] + log_probs, 0)
        return torch.einsum("s,sbt->bt", self.log_weights.exp(), out)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It is pickled as what it computes, which can be unpickled without this package; with a
        likelihood of one's own that cannot be traced, as it is."""
        try:
            return torch_only(self).__reduce__()
        except Exception:
            if self.likelihood is None:
                raise
            return super().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrunedNetwork:
        memo[id(self)] = new = type(self).__new__(type(self))
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    def extra_repr(self) -> str:
        return f"form={self.form}, depth={self.depth}"
