"""Tables of texts, by the tokenizer in a folder."""

import json

import folders
import pytest
import torch
from pyroccam import data
from strange_files import refused

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return folders.with_tokenizer(transformers, tmp_path_factory.mktemp("words"))


def ids(text):
    """What a tokenizer of whole words makes of a text, between a first and a last token."""
    return [2, *(5 + folders.WORDS.index(word) for word in text.split()), 3]


def test_texts_become_tokens_and_a_mask(tokenizer, tmp_path):
    path = folders.table(tmp_path / "a.csv", 40)
    test = folders.table(tmp_path / "b.csv", 10, seed=1)
    texts = [line.split(",")[0] for line in test.read_text().splitlines()[1:]]
    d = data.load(path, test=test, tokenizer=tokenizer)
    assert (d.classes, d.target, d.counts["test"]) == (3, "label", 10)
    x = d.fields.split(d.x_test)
    for row, text in enumerate(texts):
        length = len(ids(text))
        assert x["input_ids"][row].tolist() == ids(text) + [0] * (x["input_ids"].shape[1] - length)
        assert int(x["attention_mask"][row].sum()) == x["attention_mask"][row, :length].sum()
        assert int(x["attention_mask"][row].sum()) == length
    again = data.load(**d.source)
    assert torch.equal(again.x_train, d.x_train)
    assert torch.equal(again.x_test, d.x_test)
    new = data.new_rows(test, like=d)
    assert torch.equal(new.x_test, d.x_test)
    assert torch.equal(new.y_test, d.y_test)


def test_tables_of_texts_alone_have_targets_that_say_nothing(tokenizer, tmp_path):
    path = folders.table(tmp_path / "a.csv", 20, labels=False)
    d = data.load(path, tokenizer=tokenizer)
    assert d.classes is None
    assert d.outputs == 1
    assert not d.y_train.any()
    labelled = data.load(folders.table(tmp_path / "b.csv", 20), tokenizer=tokenizer, target="")
    assert torch.equal(labelled.x_train, d.x_train)
    assert torch.equal(data.new_rows(path, like=d).x_test[-1], data.load(
        path, test=path, tokenizer=tokenizer).x_test[-1])  # fmt: skip


def test_texts_that_are_too_long_are_refused_or_cut(tokenizer, tmp_path):
    path = folders.table(tmp_path / "a.csv", 60, longest=30)
    refused(path, tokenizer=tokenizer)
    with pytest.warns(data.DataWarning, match="cut"):
        d = data.load(path, tokenizer=tokenizer, max_length=9)
    x = d.fields.split(d.x_train)["input_ids"]
    full = (x != 0).all(1)
    assert x.shape[1] == 9
    assert full.any()
    assert (x[full, -1] == 3).all()
    short = data.load(folders.table(tmp_path / "b.csv", 30, longest=4), tokenizer=tokenizer)
    with pytest.warns(data.DataWarning, match="cut"):
        assert data.new_rows(path, like=short).x_test.shape[1] == short.input_shape[0]


@pytest.mark.parametrize(("kind", "most"), [("bert", 9), ("roberta", 7)])
def test_a_network_takes_as_many_tokens_as_it_has_positions(kind, most, tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net", length=10**30)
    words = {"model_type": kind, "max_position_embeddings": 9, "architectures": []}
    (folder / "config.json").write_text(json.dumps(words))
    for words, fits in ((most - 2, True), (most - 1, False)):
        path = tmp_path / "a.csv"
        path.write_text("text,label\n" + f"{' '.join(['w1'] * words)},a\nw1 w2,b\n" * 9)
        if fits:
            assert data.load(path, tokenizer=folder).fields.shapes["input_ids"] == (most,)
        else:
            refused(path, tokenizer=folder)


def test_bad_folders_of_tokenizers_are_told(tokenizer, tmp_path):
    path = folders.table(tmp_path / "a.csv", 20)
    refused(path, tokenizer=tmp_path / "nowhere")
    refused(path, tokenizer=tokenizer, inputs="label")
    refused(path, tokenizer=tokenizer, inputs="text,label")
    refused(path, tokenizer=tokenizer, categorical="text")
    refused(path, tokenizer=tokenizer, max_length=2)
    refused(path, max_length=9)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    refused(path, tokenizer=broken)


def test_texts_of_about_one_length_come_together():
    noise = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 40, (2500,), generator=noise)
    mask = (torch.arange(40) < lengths[:, None]).long()
    inputs = {"input_ids": mask * torch.arange(2500)[:, None], "attention_mask": mask}
    few = {name: one[:9] for name, one in inputs.items()}
    rows = data.Dataset.from_tensors(inputs, torch.arange(2500) % 2, few, torch.arange(9) % 2)
    own = rows.x_train[:, 40:].sum(1)
    orders = [rows.order(3, epoch) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(rows.N))
        longest = torch.stack([own[part].max() for part in order.split(25)]) * 25
        assert float(longest.sum() / own.sum()) < 1.1  # one and a half of rows by chance
        assert float(own[order[:1024]].mean()) == pytest.approx(float(own.mean()), abs=1.5)
    assert torch.equal(orders[0], rows.order(3, 0))
    starts = [int(own[rows.order(3, epoch)[0]]) for epoch in range(30)]
    assert len({*starts}) > 12
    assert not torch.equal(*orders)
