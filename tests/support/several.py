"""Networks of several inputs, one as a person writes it and one as Hugging Face does, and rows."""

from collections import namedtuple

import torch
from pyroccam import data
from torch import Tensor, nn
from torch.nn import functional as F

Output = namedtuple("Output", ["hidden", "logits"])


class Pair(nn.Module):
    """Words that may be masked, and a picture."""

    def __init__(self, shapes=None, outputs=2):
        super().__init__()
        self.table, self.f = nn.Embedding(9, 8), nn.Linear(8, 16)
        self.g, self.out = nn.Linear(18, 12), nn.Linear(28, outputs)

    def forward(self, ids, picture, mask=None):
        words = self.table(ids)
        if mask is not None:
            words = words * mask[..., None]
        words = self.f(words).relu().mean(1)
        seen = self.g(picture.flatten(1)).relu()
        return {"logits": self.out(torch.cat([words, seen], 1))}


class Reader(nn.Module):
    """An encoder with arguments by name, a mask that is left out where it masks nothing, heads that
    are counted and an object for its outputs."""

    def __init__(self, counted=True, written=False):
        super().__init__()
        self.word, self.place = nn.Embedding(20, 12), nn.Embedding(8, 12)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.dense, self.norm, self.classifier = (
            nn.Linear(12, 12),
            nn.LayerNorm(12),
            nn.Linear(12, 2),
        )
        self.heads, self.written = -1 if counted else 3, written

    def forward(self, input_ids=None, attention_mask=None, labels=None, **others):
        shape = input_ids.shape
        x = self.word(input_ids) + self.place(torch.arange(shape[1])[None])
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if attention_mask is not None and (traced or not attention_mask.bool().all()):
            attention_mask = attention_mask.bool()[:, None, None, :]
        else:
            attention_mask = None
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        parts = [part.view(*shape, self.heads, 4).transpose(1, 2) for part in parts]
        if self.written:
            scores = parts[0] @ parts[1].transpose(-1, -2) / 2.0
            if attention_mask is not None:
                scores = scores.masked_fill(~attention_mask, -1e4)
            heard = torch.matmul(F.dropout(scores.softmax(-1), 0.1, self.training), parts[2])
        else:
            heard = F.scaled_dot_product_attention(*parts, attn_mask=attention_mask)
        x = self.norm(x + self.dense(heard.transpose(1, 2).reshape(*shape, -1)))
        return Output(None, self.classifier(x[:, 0]))


def pictured(rows, seed=0):
    """Inputs of :class:`Pair`, of which the picture says the class."""
    g = torch.Generator().manual_seed(seed)
    x = {
        "ids": torch.randint(0, 9, (rows, 5), generator=g),
        "picture": torch.randn(rows, 2, 3, 3, generator=g) * torch.tensor([5.0, 0.1])[:, None, None]
        + 30,
        "mask": torch.rand(rows, 5, generator=g) < 0.6,
    }
    return x, (x["picture"][:, 0].mean((1, 2)) > 30).long()


def texts(rows, seed=0):
    """Inputs of :class:`Reader`."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (rows, 6), generator=g)
    mask = (torch.arange(6) < torch.randint(2, 7, (rows, 1), generator=g)).long()
    return {"input_ids": ids, "attention_mask": mask}, (ids[:, 0] > 9).long()


def of(rows, **options) -> data.Dataset:
    """Training and test rows."""
    return data.Dataset.from_tensors(*rows(80), *rows(30, seed=1), **options)


def logits(out) -> Tensor:
    return out["logits"] if isinstance(out, dict) else out.logits
