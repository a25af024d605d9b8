"""Networks in folders of transformers, as ``from_pretrained`` opens them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data import Count, PyroccamError, ask, checked, shown

_HEADS = ("ForSequenceClassification']", "ForImageClassification']")


class SentenceEncoder(nn.Module):
    """An encoder and the pooling of its last layer, ``(B, T, H) -> (B, H)``: its first token, or
    the mean of those that are not masked; of length one if ``unit``.

    References:
        Reimers and Gurevych 2019, arXiv:1908.10084.
    """

    def __init__(self, encoder: nn.Module, *, first: bool = False, unit: bool = True) -> None:
        super().__init__()
        self.encoder, self.first, self.unit = encoder, first, unit

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask[..., None].to(hidden.dtype)
        found = hidden[:, 0] if self.first else (hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        return nn.functional.normalize(found, dim=-1) if self.unit else found


@checked
def pretrained(folder: str | os.PathLike[str], outputs: Count | None = None) -> nn.Module:
    """The network in a folder of transformers, in float32; files of safetensors alone are read,
    nothing is fetched, and no code in the folder is run.

    Arguments:
        folder: with ``config.json`` and ``model.safetensors``.
        outputs: classes of a classifier of texts or images, whose head is new where the folder has
            none of this size; without them the encoder, of texts with the pooling that
            ``1_Pooling`` says, or their mean, of length one where ``modules.json`` says so.

    Raises:
        PyroccamError: for a folder that lacks a file, or of a class that transformers lacks.
        TooLarge: if it asks for more memory than may be taken.
    """
    folder = Path(folder).resolve()
    weights = [*folder.glob("*.safetensors")]
    if not weights or not (folder / "config.json").is_file():
        missing = "weights" if (folder / "config.json").is_file() else "config.json"
        raise PyroccamError(f"{folder} has no {missing}", "config.json and model.safetensors")
    ask(4.0 * sum(one.stat().st_size for one in weights), str(folder))
    try:
        with quiet():
            return _opened(folder, outputs)
    except PyroccamError:
        raise
    except Exception as error:  # whatever is raised of files that anybody wrote
        why = shown(" ".join(str(error).split()))
        raise PyroccamError(f"{folder} cannot be read by transformers ({why})") from error


def _opened(folder: Path, outputs: int | None) -> nn.Module:
    import transformers

    said, path = _words(folder / "config.json"), str(folder)
    if said["model_type"] not in transformers.CONFIG_MAPPING:
        raise PyroccamError(f"{folder} is a {shown(said['model_type'])}", "a class of transformers")
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(path, **local)
    images = hasattr(config, "image_size")
    if getattr(config, "pad_token_id", None) is None and not images:
        config.pad_token_id = getattr(config, "eos_token_id", None)
    kind = "AutoModel"
    if outputs is not None:
        config.num_labels = outputs
        kind += "ForImageClassification" if images else "ForSequenceClassification"
    net, report = getattr(transformers, kind).from_pretrained(
        path, config=config, use_safetensors=True, dtype=torch.float32,
        ignore_mismatched_sizes=True, output_loading_info=True, **local,
    )  # fmt: skip
    inner = "" if outputs is None else f"{net.base_model_prefix}."
    new = {key if isinstance(key, str) else key[0]  # with its shapes
           for key in (*report["missing_keys"], *report["mismatched_keys"])}  # fmt: skip
    if lost := sorted(key for key in new if key.startswith(inner) and "pooler" not in key):
        raise PyroccamError(f"{folder} has no {lost[0]} of the size that its config.json says")
    if images or outputs is not None:
        made: nn.Module = net
        return made
    said = _words(folder / "1_Pooling" / "config.json")
    modes = [name for name, used in said.items() if used is True and "pooling_mode" in name]
    if said and modes not in (["pooling_mode_cls_token"], ["pooling_mode_mean_tokens"]):
        raise PyroccamError(f"the pooling in {folder}", "of the first token, or the mean")
    steps = folder / "modules.json"
    listed = json.loads(steps.read_bytes()) if steps.is_file() else []
    kinds = [str(step["type"]).rpartition(".")[2] for step in listed]
    if other := sorted({*kinds} - {"Transformer", "Pooling", "Normalize"}):
        raise PyroccamError(f"{other[0]} behind the encoder in {folder}", "pooling and length one")
    return SentenceEncoder(net, first="pooling_mode_cls_token" in modes, unit="Normalize" in kinds)


def _words(path: Path) -> dict[str, Any]:
    """What a file of JSON says; nothing, if it is none."""
    with suppress(ValueError, TypeError):
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
    return {}


def is_of_transformers(folder: Path) -> bool:
    """Whether a folder says a class of transformers."""
    return "model_type" in _words(folder / "config.json")


def classes_in(folder: Path) -> int | None:
    """The classes of the classifier in a folder; none of an encoder."""
    said = _words(folder / "config.json")
    heads = str(said.get("architectures")).endswith(_HEADS)
    return len(said.get("id2label", "01")) if heads else None


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers says and draws beside its errors."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
