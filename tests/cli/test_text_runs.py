"""Runs over texts, by a network in a folder of transformers."""

import shutil

import folders
import pytest
import torch
from command_line import metrics_of
from pictures import unrendered
from pyroccam.cli import OpenOptions, PlainConsole, RunRequest
from pyroccam.cli.methods import evaluate, find
from pyroccam.cli.runs import RunConfig, RunOptions, load_fit, read_new_rows, run, score
from pyroccam.data import PyroccamError
from pyroccam.models.feeding import feed
from targets import made

transformers = pytest.importorskip("transformers")


def test_a_run_over_texts_is_opened_again_with_the_folder(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    folders.configured(transformers, "Bert", num_hidden_layers=1).save_pretrained(str(folder))
    path = folders.table(tmp_path / "a.csv", 40)
    sets = {"epochs": 1, "batch_size": 20}
    request = RunRequest("dropout", str(path), f"hf:{folder}", set_=sets)
    config, data = RunConfig.resolve(request)
    assert data.fields is not None
    options = RunOptions(compare=False)
    run(config, data, out=tmp_path / "run", options=options)
    again = load_fit(tmp_path / "run")
    x = data.x_test[:5]
    expected = again.posterior.mean_network()(x)
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(PyroccamError):
        load_fit(tmp_path / "run")
    again = load_fit(tmp_path / "run", network=f"hf:{moved}")
    torch.testing.assert_close(again.posterior.mean_network()(x), expected)


def test_a_transformer_loses_heads_and_inner_units(runs, tmp_path):
    """What is handed back has less in its tensors, and is what from_pretrained opens."""
    copied = shutil.copytree(runs("transfer")[0], tmp_path / "run")
    metrics, fit = metrics_of(copied), load_fit(copied)
    assert all(".layer." in name for name in fit.model.layers)  # no head
    small = metrics["compressed"]
    assert small["parameters"] < 0.9 * small["parameters_before"]
    assert metrics["test"].keys() == small["test"].keys()
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(
        str(copied / "transformers"), local_files_only=True
    )
    widths = {m.weight.shape[0] for n, m in whole.named_modules() if "intermediate.dense" in n}
    assert widths < {*range(48)}
    again = evaluate(fit, feed(whole.eval(), fit.data.fields))
    assert again["nll"] == pytest.approx(small["test"]["nll"], rel=1e-4)
    (copied / "compressed.pocc").unlink()
    assert [*score(PlainConsole(), copied, load_fit(copied), {"": fit.data}, "test")] == ["full"]


def test_an_encoder_of_texts_without_labels_learns_its_own_embeddings(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    given = folders.configured(transformers, "Bert", num_hidden_layers=2).bert
    given.save_pretrained(str(folder))
    path = folders.table(tmp_path / "a.csv", 160, labels=False)
    sets = {"epochs": 6, "lr": 1e-3, "keep": 0.5}
    request = RunRequest("transfer", str(path), f"hf:{folder}", set_=sets)
    config, data = RunConfig.resolve(request)
    assert (config.options["likelihood"], config.options["tolerance"]) == ("embedding", None)
    inputs = data.fields.split(data.x_test)
    with torch.no_grad():
        places = given(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    own = torch.nn.functional.normalize((mask * places).sum(1), dim=-1)  # of the mean
    torch.testing.assert_close(data.y_test, own, rtol=1e-4, atol=1e-5)
    with unrendered():
        all_figures = RunOptions(figures=True)
        metrics = run(config, data, out=tmp_path / "run", options=all_figures).metrics
    assert metrics["warnings"] == []
    drawn = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert drawn >= {"training", "sparsity"}
    assert not any("predictive" in name for name in drawn)  # there is no noise to draw
    whole, small = metrics["test"], metrics["compressed"]
    assert small["parameters"] < 0.9 * small["parameters_before"]
    assert whole["similarity"] > 0.97
    assert small["test"]["similarity"] > 0.5
    # New texts have what the whole network says of them as targets, too.
    result, opening = load_fit(tmp_path / "run"), OpenOptions()
    # Nothing is dropped where the given network is learnt; who trains what is left drops as before.
    dropped = [one.p for one in result.model.modules() if isinstance(one, torch.nn.Dropout)]
    assert set(dropped) == {0.0}
    handed = transformers.AutoConfig.from_pretrained(str(tmp_path / "run" / "transformers"))
    assert handed.hidden_dropout_prob == given.config.hidden_dropout_prob > 0
    new = folders.table(tmp_path / "b.csv", 50, seed=1, labels=False)
    console = PlainConsole()
    sets = read_new_rows(console, str(new), tmp_path / "run", opening, result.data)
    found = score(console, tmp_path / "run", result, sets, "test")
    assert found["full"]["similarity"] > 0.97
    assert len(sets[""].y_test) == 50


def test_a_classifier_of_texts_without_labels_learns_its_own_classes(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    given = folders.configured(transformers, "Bert", num_hidden_layers=1)
    given.save_pretrained(str(folder))
    path = folders.table(tmp_path / "a.csv", 60)
    sets = {"epochs": 1, "data.target": ""}  # the labels of the table are not looked at
    config, data = RunConfig.resolve(RunRequest("transfer", str(path), f"hf:{folder}", set_=sets))
    with torch.no_grad():
        logits = given(**data.fields.split(data.x_test)).logits
    assert data.classes == 3
    assert torch.equal(data.y_test, logits.argmax(-1))
    assert torch.equal(config.load_data().y_train, data.y_train)


def test_more_texts_are_made_of_pieces_of_one_or_two(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    folders.configured(transformers, "Bert", num_hidden_layers=1).save_pretrained(str(folder))
    path = folders.table(tmp_path / "a.csv", 40, labels=False)
    sets = {"pieces": 3, "data.seed": 5}
    config, data = RunConfig.resolve(RunRequest("transfer", str(path), f"hf:{folder}", set_=sets))
    inputs = data.fields.split(data.x_train)
    lengths = inputs["attention_mask"].sum(1)
    rows = [ids[:length].tolist() for ids, length in zip(inputs["input_ids"], lengths, strict=True)]
    assert len(data.y_train) == len(rows)
    given, made = rows[: len(rows) // 4], rows[len(rows) // 4 :]
    words = [" ".join(map(str, ["", *row[1:-1], ""])) for row in given]

    def is_piece(tokens):
        return any(" ".join(map(str, ["", *tokens, ""])) in row for row in words) or not tokens

    inner = [row[1:-1] for row in made]
    assert {row[0] for row in made} <= {row[0] for row in given}
    assert {row[-1] for row in made} <= {row[-1] for row in given}
    assert all(any(is_piece(r[:i]) and is_piece(r[i:]) for i in range(len(r) + 1)) for r in inner)
    assert 0.2 < sum(map(is_piece, inner)) / len(inner) < 0.9
    assert torch.equal(config.load_data().x_train, data.x_train)
    heavy = tmp_path / "c.csv"
    lines = zip(path.read_text().splitlines(), ["w", *range(1, 41)], strict=True)
    heavy.write_text("\n".join(f"{text},{weight}" for text, weight in lines))
    given = {**sets, "data.weights": "w", "data.target": ""}
    request = RunRequest("transfer", str(heavy), f"hf:{folder}", set_=given)
    weights = RunConfig.resolve(request)[1].weights
    own = len(weights) // 4
    torch.testing.assert_close(weights[own:], weights[:own].mean().expand(3 * own))
    with_labels = folders.table(tmp_path / "b.csv", 40)
    for table, count in ((path, -1), (with_labels, 3)):
        request = RunRequest("transfer", str(table), f"hf:{folder}", set_={"pieces": count})
        with pytest.raises(PyroccamError, match="pieces"):
            RunConfig.resolve(request)


def test_without_a_list_of_blocks_all_layers_but_the_head_may_lose_units():
    data = made("categorical", n=40, test=10)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    )
    model, _ = find("transfer").build(net, data)
    assert {*model.layers} == {"0", "2"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of an untrained network, and a table."""
    at = tmp_path_factory.mktemp("texts")
    folder = folders.with_tokenizer(transformers, at / "net")
    folders.configured(transformers, "Bert", num_hidden_layers=1).save_pretrained(str(folder))
    return str(folders.table(at / "a.csv", 60)), f"hf:{folder}"
