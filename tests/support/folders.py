"""Folders of tiny transformers with random weights, and tables of texts for them."""

import random

import torch

WORDS = [f"w{k}" for k in range(40)]
SIZES = {"num_attention_heads": 4, "num_hidden_layers": 3, "hidden_size": 32}
SIZES |= {"intermediate_size": 48, "num_labels": 3}
TEXT = {**SIZES, "vocab_size": 45, "max_position_embeddings": 24, "pad_token_id": 0}
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_inner": 48, "n_positions": 24, "num_labels": 3}
GPT |= {"vocab_size": 45, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
DISTIL = {"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 48, "vocab_size": 45}
DISTIL |= {"max_position_embeddings": 24, "pad_token_id": 0, "num_labels": 3}
KINDS = {
    "Bert": TEXT,
    "Roberta": TEXT,
    "DistilBert": DISTIL,
    "Electra": {**TEXT, "embedding_size": 24},
    "GPT2": GPT,
    "Llama": {**TEXT, "num_key_value_heads": 2},
    "ViT": {**SIZES, "image_size": 16, "patch_size": 4},
}


def configured(library, kind, **more):
    """An untrained classifier, of which no tensor is zero."""
    config = getattr(library, f"{kind}Config")(**{**KINDS[kind], **more})
    auto = "Image" if kind == "ViT" else "Sequence"
    torch.manual_seed(0)
    net = getattr(library, f"AutoModelFor{auto}Classification").from_config(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net.eval()


def with_tokenizer(library, folder, length=20):
    """A tokenizer of whole words in a folder."""
    folder.mkdir(exist_ok=True)
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*first, *WORDS]))
    made = library.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=length)
    made.save_pretrained(str(folder))
    return folder


def table(path, rows, seed=0, labels=True, longest=12):
    """Texts, of which the first word says the class."""
    noise = random.Random(seed)
    lines = ["text,label"] if labels else ["text"]
    for _ in range(rows):
        words = noise.choices(WORDS, k=noise.randint(3, longest))
        kind = "abc"[WORDS.index(words[0]) % 3]
        lines.append(" ".join(words) + (f",{kind}" if labels else ""))
    path.write_text("\n".join(lines) + "\n")
    return path
