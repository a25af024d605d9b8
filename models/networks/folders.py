"""Networks in folders of transformers, as ``from_pretrained`` opens them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data import Count, PyroccamError, ask, checked, shown


class SentenceEncoder(nn.Module):
    """An encoder and the pooling of its last layer, ``(B, T, H) -> (B, H)``.

    Arguments:
        encoder: of transformers.
        first: takes the first token; else the mean of those that are not masked.
        unit: vectors of length one.

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
            ``1_Pooling`` says, or their mean.

    Raises:
        PyroccamError: for a folder that lacks a file, or of a class that transformers lacks.
        TooLarge: if it asks for more memory than may be taken.
    """
    folder = Path(folder)
    files = [*folder.glob("*.safetensors")]
    for name, found in (("config.json", (folder / "config.json").is_file()), ("weights", files)):
        if not found:
            known = "a folder with config.json and model.safetensors"
            raise PyroccamError(f"{folder} has no {name}", known)
    ask(4.0 * sum(one.stat().st_size for one in files), str(folder))
    try:
        import transformers
    except ImportError as error:
        raise PyroccamError("hf: without transformers", hint="pip install transformers") from error
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with quiet():
        with _reading(folder / "config.json", "a description of a network"):
            kind = json.loads((folder / "config.json").read_bytes())["model_type"]
            if kind not in transformers.CONFIG_MAPPING:
                raise PyroccamError(f"{folder} is a {shown(kind)}", "a class of transformers")
        with _reading(folder, "a network that transformers knows"):
            config = transformers.AutoConfig.from_pretrained(str(folder), **local)
            images = hasattr(config, "image_size")
            kind = "ImageClassification" if images else "SequenceClassification"
            if outputs is not None:
                config.num_labels = outputs
            if getattr(config, "pad_token_id", None) is None and not images:
                config.pad_token_id = getattr(config, "eos_token_id", None)
            maker = getattr(transformers, "AutoModel" if outputs is None else f"AutoModelFor{kind}")
            net, said = maker.from_pretrained(
                str(folder), config=config, use_safetensors=True, dtype=torch.float32,
                ignore_mismatched_sizes=True, output_loading_info=True, **local,
            )  # fmt: skip
        inner = "" if outputs is None else f"{net.base_model_prefix}."
        new = [key[0] if isinstance(key, tuple) else key
               for key in (*said["missing_keys"], *said["mismatched_keys"])]  # fmt: skip
        if lost := sorted(key for key in new if key.startswith(inner) and "pooler" not in key):
            raise PyroccamError(f"{folder} has no {lost[0]} of the size that its config.json says")
    return net if images or outputs is not None else _pooled(net, folder)


def classes_in(folder: Path) -> int | None:
    """The classes of the classifier in a folder; none of an encoder."""
    with _reading(folder / "config.json", "a description of a network"):
        words = json.loads((folder / "config.json").read_bytes())
        heads = str(words.get("architectures")).endswith("Classification']")
        return len(words.get("id2label", "01")) if heads else None


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers says and draws beside its errors."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """One kind of error for whatever readers raise of files that anybody wrote."""
    try:
        yield
    except PyroccamError:
        raise
    except Exception as error:
        raise PyroccamError(
            f"{path} is not {what} ({shown(' '.join(str(error).split()))})"
        ) from error


def _pooled(net: nn.Module, folder: Path) -> SentenceEncoder:
    """An encoder with the pooling that files of sentence-transformers say."""
    said, steps = folder / "1_Pooling" / "config.json", folder / "modules.json"
    with _reading(folder, "a network that sentence-transformers knows"):
        pooling = json.loads(said.read_bytes()) if said.is_file() else {}
        unit = not steps.is_file() or b"Normalize" in steps.read_bytes()
        first = bool(pooling.get("pooling_mode_cls_token"))
        if pooling and not (first or pooling.get("pooling_mode_mean_tokens")):
            raise PyroccamError(f"the pooling in {said}", "of the first token, or the mean")
    return SentenceEncoder(net, first=first, unit=unit)
