"""Networks of transformers, cut, as folders that ``from_pretrained`` alone opens.

Their configurations say one width for all layers: narrower ones are filled up with zeros, and so
are heads where a configuration has no word for them. The function is the same.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import warnings
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data import PyroccamError
from ...models import evaluating, outputs_taken
from ...models.networks import SentenceEncoder, quiet
from ...models.plain import is_select, plain_words, rows_first
from ...models.unpacked import copied, unpacked
from ..storage import write_whole

_Words = tuple[str, dict[str, tuple[str, ...]]]
_BERT: _Words = "num_hidden_layers", {"intermediate_size": ("intermediate.dense", "mlp.fc1")}
_LLAMA: _Words = (
    "num_hidden_layers",
    {
        "intermediate_size": ("mlp.gate_proj",),
        "num_attention_heads": ("self_attn.q_proj",),
        "num_key_value_heads": ("self_attn.k_proj",),
    },
)
_KINDS: dict[str, _Words] = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "vit": _BERT,
    "distilbert": ("n_layers", {"hidden_dim": ("ffn.lin1",)}),
    "gpt2": ("n_layer", {"n_inner": ("mlp.c_fc",)}),
    "llama": _LLAMA,
}
"""The fields of a configuration that say how many layers there are and how wide they are, with the
module of a layer that has this width, by whatever version; by ``model_type``."""

_TOKENIZER = "tokenizer special_tokens_map added_tokens vocab merges spiece sentencepiece.bpe"
_BESIDE = [
    *(f"{name}.{end}" for name in _TOKENIZER.split() for end in ("json", "txt", "model")),
    *("tokenizer_config.json", "preprocessor_config.json"),
    *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"),
]
"""What is copied: tokenizer and pooling."""


def of_transformers(net: nn.Module) -> Any:
    """The network itself, if its class is of transformers, or the encoder of sentences in it; else
    ``None``."""
    inner = net.encoder if isinstance(net, SentenceEncoder) else net
    found = hasattr(inner, "config") and hasattr(type(inner), "from_pretrained")
    return inner if found else None


def save_pretrained(net: nn.Module, folder: str | Path) -> Path:
    """Write ``config.json`` and ``model.safetensors``, and beside them the tokenizer of the folder
    that the network was read from. What is read back is compared before that.

    Arguments:
        net: of which :func:`of_transformers` finds something; cut or not.

    Raises:
        PyroccamError: for a class whose cuts are not known here, and a cut that no configuration
            can say.

    Warns:
        UserWarning: of zeros in the file for which a configuration has no word.
    """
    folder, inner = Path(folder), of_transformers(net)
    kind, known = type(inner), _KINDS.get(inner.config.model_type)
    way_out = "a path that ends in .pocc, .pt2 or .onnx"
    if known is None and "save_pretrained" in vars(inner):
        raise PyroccamError(f"the folder of a cut {kind.__name__}", ", ".join(_KINDS), way_out)
    with evaluating(inner), quiet():
        try:
            whole, zeros = _filled(inner, known)
            with tempfile.TemporaryDirectory() as place:
                whole.save_pretrained(place)
                _compare(inner, kind.from_pretrained(place, local_files_only=True))
                source = Path(inner.name_or_path or place)
                _copy(source, Path(place), getattr(whole.config, "vocab_size", 0))
                for one in sorted(Path(place).rglob("*.*")):
                    target = folder / one.relative_to(place)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(target, methodcaller("write", one.read_bytes()))
        except PyroccamError:
            raise
        except Exception as error:  # whatever transformers raises of sizes that it does not take
            found = f"the folder of this {kind.__name__} ({plain_words(error)})"
            raise PyroccamError(found, "sizes that its config.json can say", way_out) from error
    if zeros:
        said = f"{folder} has {sum(zeros.values()):,} numbers more than the network, zeros"
        warnings.warn(f"{said}: config.json has no word for {', '.join(zeros)}.", stacklevel=3)
    return folder


def _copy(source: Path, place: Path, rows: int) -> None:
    """Copy the tokenizer of a folder, if its words are among the rows of a table."""
    if any((source / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        from transformers import AutoTokenizer

        local = {"local_files_only": True, "trust_remote_code": False}
        words = len(AutoTokenizer.from_pretrained(str(source), **local))
        if words > rows:
            raise PyroccamError(f"a table of {rows} rows, and {words} words in {source}", "as many")
    for name in _BESIDE:
        if (source / name).is_file() and not (place / name).exists():
            (place / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, place / name)


def _filled(net: Any, words: _Words | None) -> tuple[Any, dict[str, int]]:
    """A network of the same class that a configuration says, and the zeros in it, by module."""
    config, own = copy.deepcopy(net.config), cast(Any, unpacked(copied(net)))
    tensors, linear = _tensors(own)
    layers = next((name for name, m in net.named_modules() if isinstance(m, nn.ModuleList)), "")
    if words is not None:
        count, widths = words
        setattr(config, count, len(net.get_submodule(layers)))
        for name, modules in widths.items():
            ends = tuple(f".{one}.weight" for one in modules)
            most = max(len(t) for key, t in tensors.items() if key.endswith(ends))
            setattr(config, name, -(-most // (config.head_dim if "heads" in name else 1)))
    table = own.get_input_embeddings()
    name = next((n for n, module in own.named_modules() if module is table), "")
    if hasattr(config, "vocab_size"):
        config.vocab_size = len(tensors[f"{name}.weight"])
    with torch.random.fork_rng(devices=[]):
        whole: Any = type(net)(config)
    whole.to(next(net.parameters())).eval()
    zeros: dict[str, int] = {}
    for key, given in whole.state_dict().items():
        module, kept = key.rpartition(".")[0], tensors[key]
        if module in linear and not isinstance(whole.get_submodule(module), nn.Linear):
            kept = kept.mT if kept.dim() == 2 else kept  # as GPT-2 has it
        sides = [there - here for there, here in zip(given.shape, kept.shape, strict=True)]
        if min(sides, default=0) < 0:
            raise PyroccamError(f"{key} of shape {tuple(kept.shape)}", f"{tuple(given.shape)}")
        given.copy_(F.pad(kept, [n for side in reversed(sides) for n in (0, side)]))
        if any(sides):
            name = module
            if module.startswith(f"{layers}."):  # one name for all layers
                name = module.removeprefix(f"{layers}.").partition(".")[2]
            zeros[name] = zeros.get(name, 0) + given.numel() - kept.numel()
    return whole, zeros


def _tensors(net: nn.Module) -> tuple[dict[str, Tensor], set[str]]:
    """The tensors of a network by the names that they had before choices of features came around
    its layers, which are written into the weights; and the names of its linear layers."""
    found = dict(net.state_dict())
    linear = {name for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    for name, module in net.named_modules():
        parts = [*module] if isinstance(module, nn.Sequential) else []
        if not any(map(is_select, parts)):
            continue
        (layer,) = (part for part in parts if not is_select(part))
        weight, bias = rows_first(layer), getattr(layer, "bias", None)
        if is_select(first := parts[0]):
            wide = weight.new_zeros(len(weight), int(first.index.max()) + 1)
            weight = wide.index_add(1, first.index, weight)
        if is_select(last := parts[-1]):
            weight = F.pad(weight, (0, 0, 0, 1))[last.index]
            bias = None if bias is None else F.pad(bias, (0, 1))[last.index]
        found[f"{name}.weight"] = weight.T if isinstance(layer, nn.Embedding) else weight
        found |= {} if bias is None else {f"{name}.bias": bias}
        linear |= {name} if isinstance(layer, nn.Linear) else set()
    return found, linear


def _compare(net: Any, other: Any) -> None:
    """Refuse a network that gives others than one of the same class, which is cut."""
    noise, words = torch.Generator().manual_seed(0), net.config
    if hasattr(words, "vocab_size"):
        ids = torch.randint(other.config.vocab_size, (4, 8), generator=noise)
        mask = torch.arange(8) < torch.tensor([8, 8, 5, 2])[:, None]
        pad = words.pad_token_id or 0
        ids = torch.where(ids == pad, (pad + 1) % other.config.vocab_size, ids)
        ids = torch.where(mask, ids, pad)
        given: dict[str, Tensor] = {"input_ids": ids, "attention_mask": mask.long()}
    else:
        side = words.image_size
        size = (side, side) if isinstance(side, int) else tuple(side)
        pixels = torch.randn(4, words.num_channels, *size, generator=noise)
        given = {"pixel_values": pixels.to(next(net.parameters()))}
    like = next(net.parameters())
    given = {name: part.to(like.device) for name, part in given.items()}
    outs = (outputs_taken(one(**given)) for one in (net, other.to(like).eval()))
    a, b = (out if isinstance(out, Tensor) else out[0] for out in outs)
    if not (a - b).abs().max() <= 1e-4 * a.abs().max():
        raise PyroccamError(f"the folder of this {type(net).__name__} gives other outputs than it")
