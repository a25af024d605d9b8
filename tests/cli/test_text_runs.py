"""Runs over texts, by a network in a folder of transformers."""

import folders
import pytest
import torch
from pyroccam.cli.requests import RunRequest
from pyroccam.cli.runs import RunConfig, load_fit
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.data import PyroccamError

transformers = pytest.importorskip("transformers")


def test_a_run_over_texts_is_opened_again_with_the_folder(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    folders.configured(transformers, "Bert", num_hidden_layers=1).save_pretrained(str(folder))
    path = folders.table(tmp_path / "a.csv", 40)
    sets = {"epochs": 1, "batch_size": 20}
    request = RunRequest("dropout", str(path), f"hf:{folder}", set_=sets)
    config, data = RunConfig.resolve(request)
    assert data.fields is not None
    options = RunOptions(compare=False, figures=False)
    run(config, data, out=tmp_path / "run", options=options)
    again = load_fit(tmp_path / "run")
    x = data.x_test[:5]
    expected = again.posterior.mean_network()(x)
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(PyroccamError):
        load_fit(tmp_path / "run")
    again = load_fit(tmp_path / "run", network=f"hf:{moved}")
    torch.testing.assert_close(again.posterior.mean_network()(x), expected)
