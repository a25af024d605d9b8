"""The folder of a plain network: its tensors, how it is rebuilt, and the digests of both."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as saved_tensors
from torch import Tensor, nn

from ...data import PyroccamError, TooLarge, allowing, ask, shown
from ...models.likelihoods import Classification, Likelihood, Regression, words
from ...models.networks import DepthStack, build, classes_in, is_of_transformers, pretrained
from ...models.plain import (
    PrunedNetwork,
    check_same,
    describe,
    dtype_named,
    fill,
    parsed,
    plain_words,
    rebuild,
)
from ...models.plain import state as plain_state
from ..storage import check_digests, write_digests, write_whole

DESCRIPTION, TENSORS = "description.json", "model.safetensors"
_WAY_OUT = "copy the folder again, or write it anew by Small.save"


class NetworkFolderError(PyroccamError):
    """The folder of a network cannot be read: damaged, mixed up, or of another program."""


class MissingFile(PyroccamError, FileNotFoundError):
    """The folder of a network lacks a file."""


def save_folder(net: nn.Module, folder: str | Path) -> Path:
    """Write ``model.safetensors``, ``description.json`` and ``digests.json`` into ``folder``;
    returns the folder.
    """
    folder = Path(folder)
    if isinstance(net, PrunedNetwork):
        state: Mapping[str, Tensor] = net.state_dict()
        description = {**net.description, "dtypes": _dtypes(state)}
    else:
        graph = describe(net)
        description, state = {"format": 1, "form": "plain", "graph": graph}, plain_state(net, graph)
    tensors = {name: t.contiguous().cpu().clone() for name, t in state.items()}
    content = saved_tensors(tensors)
    text = json.dumps(description, indent=2) + "\n"
    if description["form"] == "plain":
        with allowing("999TB"):
            found = rebuild(graph := json.loads(text)["graph"])
            fill(found, graph, load_tensors(content))
        check_same(plain_state(found, graph), tensors)
    write_whole(folder / TENSORS, lambda file: file.write(content))
    write_whole(folder / DESCRIPTION, lambda file: file.write(text), "w")
    write_digests(folder, (DESCRIPTION, TENSORS))
    return folder


def load_folder(
    folder: str | Path, stack: DepthStack | None = None, likelihood: Likelihood | None = None
) -> nn.Module:
    """Rebuild a network from the files of :func:`save`; runs no pickled code.

    A folder may be a stranger's: its files are compared with their digests, and memory is asked for
    before it is taken. A folder of an older version has no digests and is read without a word.

    Arguments:
        folder: as written by :func:`save`.
        stack: for a network of one's own, which a description cannot rebuild: the stack as it was
            built before training (its weights do not matter).
        likelihood: in the same way, where it is one's own.
    """
    folder = Path(folder)
    if is_of_transformers(folder) and not (folder / DESCRIPTION).exists():
        return pretrained(folder, classes_in(folder)).eval()
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise MissingFile(f"{folder} has no {name}", "a folder written by Small.save", _WAY_OUT)
    check_digests(folder, needed=(DESCRIPTION, TENSORS))
    with _naming(folder / DESCRIPTION, "cannot be read"):
        description = _read(folder / DESCRIPTION)
        if description.get("form") == "plain":
            net: nn.Module = rebuild(description.get("graph", {}))
        else:
            net = _pruned(folder, description, stack, likelihood)
    with _naming(folder / TENSORS, "does not fit its description"):
        if isinstance(net, PrunedNetwork):
            _fill_pruned(net, folder / TENSORS, description.get("dtypes"), stack is None)
        else:
            graph = description["graph"]
            fill(net, graph, _tensors(folder / TENSORS, plain_state(net, graph)))
    return net.eval()


@contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    """Errors name the file: torch and Python refuse sizes and kinds in many ways."""
    try:
        yield
    except NetworkFolderError:
        raise
    except TooLarge as error:
        raise TooLarge(f"{path}: {error.found}", error.expected, error.hint) from error
    except Exception as error:
        raise NetworkFolderError(f"{path} {what}: {plain_words(error)}", hint=_WAY_OUT) from error


def _read(path: Path) -> dict[str, Any]:
    ask(path.stat().st_size, "it")
    found = parsed(path.read_bytes(), "it")
    written = found.get("format") if isinstance(found, dict) else None
    if written != 1 or isinstance(written, bool):
        raise NetworkFolderError(
            f"{path} cannot be read: format {shown(written)}", "1", "write it by this version"
        )
    return found


# -- a pruned network -----------------------------------------------------------------------------


def _pruned(
    folder: Path,
    description: dict[str, Any],
    stack: DepthStack | None,
    likelihood: Likelihood | None,
) -> PrunedNetwork:
    """The network without its numbers: on no device, if its description rebuilds it."""
    form, task, recipe = description["form"], description["task"], description["stack"]
    if form not in ("marginal", "single") or task not in {one.task for one in words().values()}:
        raise PyroccamError(f"form {shown(form)} and task {shown(task)}")
    depth, outputs = (_whole(name, description[name]) for name in ("depth", "outputs"))
    known = stack is None
    if known and recipe is None:
        own_net = f"{folder} holds a network of one's own, which its description cannot rebuild"
        raise NetworkFolderError(own_net, hint="load(folder, stack=...), as before training")
    own = description.get("likelihood")
    if own is not None and not (isinstance(own, str) and own.isidentifier()):
        raise PyroccamError(f"likelihood {shown(own)}")
    given = None if likelihood is None else type(likelihood).__name__
    ours = {kind.__name__: kind for kind in words().values()}
    if given != own and not (given is None and own in ours):
        raise NetworkFolderError(f"{folder} with likelihood={given}", f"{own or 'none given'}")
    with torch.device("meta") if known else nullcontext():
        built = build(recipe) if stack is None else copy.deepcopy(stack)
        if depth > built.max_depth:
            raise PyroccamError(f"depth {depth} of a network of {built.max_depth} blocks")
        if likelihood is None and own is not None:
            likelihood = _made_again(ours[own], description.get("arguments"), task, outputs)
        elif likelihood is None:
            kind = Classification if task == "classification" else Regression
            likelihood = kind(outputs)
        built.head = likelihood.headed(built.head, built.max_depth + 1)
        weights = None if form == "single" else torch.full((depth + 1,), 1.0 / (depth + 1))
        net = PrunedNetwork(built, depth, weights, likelihood)
    net.description["stack"] = recipe
    return net


def _made_again(kind: type[Likelihood], given: Any, task: str, outputs: int) -> Likelihood:
    """A likelihood of ours without its numbers."""
    if not isinstance(given, dict):
        raise PyroccamError(f"arguments is {shown(given)}")
    arguments = {str(name): _whole(str(name), value) for name, value in given.items()}
    ask(8 * sum(arguments.values()), kind.__name__)
    made = kind(**arguments)
    if (made.task, made.outputs) != (task, outputs):
        said = f"{task} and {outputs} outputs"
        raise PyroccamError(f"{said}, for {kind.__name__} of {made.task} and {made.outputs}")
    return made


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PyroccamError(f"{name} is {shown(value)}")
    return value


def _fill_pruned(net: PrunedNetwork, path: Path, dtypes: Any, known: bool) -> None:
    """Take the tensors of a file, of the dtypes that its description says. One of an older version
    says none, and the network's own are taken; one that was not rebuilt by its description, which
    is not ``known``, keeps its precision too."""
    expected = net.state_dict()
    found = _tensors(path, expected)
    for name, tensor in found.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise PyroccamError(f"{name} is of {tensor.dtype}, expected {expected[name].dtype}")
        if dtypes is None or not known:
            found[name] = tensor.to(expected[name].dtype)
        elif tensor.dtype != (said := _said(dtypes, name)):
            raise PyroccamError(f"{name} is of {tensor.dtype}, expected {said}")
    net.load_state_dict(found, assign=known)


def _dtypes(state: Mapping[str, Tensor]) -> dict[str, str]:
    """The dtypes of the tensors that are not float32."""
    return {
        name: str(t.dtype).removeprefix("torch.")
        for name, t in state.items()
        if t.dtype != torch.float32
    }


def _said(dtypes: Any, name: str) -> torch.dtype:
    if not isinstance(dtypes, dict):
        raise PyroccamError(f"dtypes is {shown(dtypes)}")
    return dtype_named(dtypes.get(name, "float32"))


# -- tensors --------------------------------------------------------------------------------------


def _tensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, if their names and shapes are those of `expected`.

    Read as bytes: a mapped file may change or go, and its path may be no text.
    """
    asked = sum(t.numel() * max(t.element_size(), 4) for t in expected.values())
    ask(asked + path.stat().st_size, "it")
    tensors = load_tensors(path.read_bytes())
    if odd := set(tensors) ^ set(expected):
        which = "lacks" if min(odd) in expected else "has"
        raise PyroccamError(f"it {which} {shown(min(odd))}")
    for name, tensor in expected.items():
        if (shape := tuple(tensors[name].shape)) != tensor.shape:
            raise PyroccamError(f"{name} has shape {shape}, expected {tuple(tensor.shape)}")
    return tensors
