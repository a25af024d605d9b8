"""What is left after cutting: a plain torch module, and its files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from . import networks
from .description import describe, fill, rebuild
from .description import state as plain_state
from .likelihoods import Classification, Likelihood, Regression
from .stack import DepthStack

__all__ = ["Form", "PrunedNetwork", "load", "save"]

Form = Literal["marginal", "single"]
"""An average over the exits of all depths that are kept, or one exit alone."""


class PrunedNetwork(nn.Module):
    """Predicts with the first blocks of a stack; there is no Pyro in it.

    Arguments:
        stack: with all its depths; what is needed is copied.
        depth: the deepest block that is kept.
        weights: over the depths 0 ... ``depth`` (marginal form), ``(depth + 1,)``; ``None`` for
            the single-exit form, which computes the exit of ``depth`` alone.
        likelihood: says what the outputs mean; the noise of a regression is kept as a buffer, and
            a likelihood of one's own is copied.

    The forward pass gives log-probabilities ``(B, C)`` for classification (in single-exit form
    they serve as logits too: a softmax leaves them as they are) and the predictive mean ``(B, T)``
    for regression.

    Raises:
        ValueError: for another number of weights than depths.
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
            raise ValueError(
                f"{tuple(weights.shape)} weights for the depths 0 ... {depth}: expected "
                f"({depth + 1},). See inference.pruned_weights."
            )
        device = next(stack.parameters()).device
        log_weights = weights.double().log().clamp_min(-1e4)  # finite: a depth of weight 0 is legal
        self.register_buffer("log_weights", log_weights.float().to(device))
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
            if out.shape[0] == 1:
                return log_probs[0]
            return torch.logsumexp(self.log_weights[:, None, None] + log_probs, 0)
        return torch.einsum("s,sbt->bt", self.log_weights.exp(), out)

    def extra_repr(self) -> str:
        return f"form={self.form}, depth={self.depth}"


def save(net: nn.Module, folder: str | Path) -> Path:
    """Write ``model.safetensors`` and ``description.json`` into ``folder``; returns the folder.

    Arguments:
        net: a pruned network, or any plain one that
            :func:`~pyroccam.models.description.describe` can describe.
    """
    folder = Path(folder)
    if isinstance(net, PrunedNetwork):
        description, state = net.description, net.state_dict()
    else:
        graph = describe(net)
        description, state = {"format": 1, "form": "plain", "graph": graph}, plain_state(net, graph)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.contiguous().cpu().clone() for name, t in state.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "description.json").write_text(json.dumps(description, indent=2) + "\n")
    return folder


def load(
    folder: str | Path, stack: DepthStack | None = None, likelihood: Likelihood | None = None
) -> nn.Module:
    """Rebuild a network from the files of :func:`save`; runs no pickled code.

    Arguments:
        folder: as written by :func:`save`.
        stack: for a network of one's own, which a description cannot rebuild: the stack as it was
            built before training (its weights do not matter).
        likelihood: in the same way, where it is one's own.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the description cannot be used, or the weights do not fit.
    """
    folder = Path(folder)
    for name in ("description.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}: expected a folder written by save().")
    try:
        description = json.loads((folder / "description.json").read_text())
        if description.get("format") != 1:
            raise ValueError(f"format {description.get('format')!r}, expected 1")
        if description.get("form") == "plain":
            return _load_plain(folder, description["graph"])
        depth, outputs = int(description["depth"]), int(description["outputs"])
        form, task = description["form"], description["task"]
        if form not in ("marginal", "single") or task not in ("classification", "regression"):
            raise ValueError(f"form {form!r} and task {task!r}")
        recipe, own = description["stack"], description.get("likelihood")
        if stack is None and recipe is not None:
            stack = networks.build(recipe)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'description.json'} cannot be read: {error!r}.") from error
    if stack is None:
        raise ValueError(
            f"{folder} holds a network of one's own, which its description cannot rebuild. "
            "Pass load(folder, stack=...) with the DepthStack as it was built before training."
        )
    given = None if likelihood is None else type(likelihood).__name__
    if given != own:
        raise ValueError(
            f"{folder} holds a network whose likelihood is "
            + (f"{own}: pass" if own else "known: leave out")
            + f" load(folder, likelihood=...), got {given}."
        )
    if likelihood is None:
        likelihood = Classification(outputs) if task == "classification" else Regression(outputs)
    weights = None if form == "single" else torch.full((depth + 1,), 1.0 / (depth + 1))
    net = PrunedNetwork(stack, depth, weights, likelihood)
    net.description["stack"] = recipe
    try:
        net.load_state_dict(load_file(folder / "model.safetensors"))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"{folder / 'model.safetensors'} does not fit its description: {error}"
        ) from error
    return net


def _load_plain(folder: Path, graph: dict[str, Any]) -> nn.Module:
    net = rebuild(graph)
    try:
        fill(net, graph, load_file(folder / "model.safetensors"))
    except SafetensorError as error:
        raise ValueError(f"{folder / 'model.safetensors'} is damaged: {error}") from error
    return net.eval()
