"""Networks in folders of transformers."""

import json

import folders
import pytest
import torch
from pyroccam import inference
from pyroccam.data import PyroccamError, allowing
from pyroccam.models.networks import pretrained

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[2, 7, 9, 3, 0, 0], [2, 8, 8, 6, 11, 3]])
MASK = (IDS != 0).long()


@pytest.fixture
def folder(tmp_path):
    folders.configured(transformers, "Bert").save_pretrained(str(tmp_path))
    return tmp_path


def test_a_classifier_keeps_its_head_where_it_fits(folder):
    own = folders.configured(transformers, "Bert")
    for outputs in (3, 5):
        net = pretrained(folder, outputs).eval()
        assert net.config.num_labels == outputs
        torch.testing.assert_close(net.bert(IDS, MASK)[1], own.bert(IDS, MASK)[1])
        assert (outputs == 3) == torch.equal(net(IDS, MASK)[0], own(IDS, MASK)[0])
    images = folder / "images"
    own = folders.configured(transformers, "ViT")
    own.save_pretrained(str(images))
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(pretrained(images, 3).eval()(x).logits, own(x).logits)


def test_without_outputs_it_gives_sentences(folder):
    hidden = folders.configured(transformers, "Bert").bert(IDS, MASK)[0]
    expected = torch.stack([hidden[0, :4].mean(0), hidden[1].mean(0)])
    found = pretrained(folder).eval()(IDS, MASK)
    torch.testing.assert_close(found, expected)
    steps = [{"type": f"sentence_transformers.models.{name}"} for name in ("Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(steps))
    found = pretrained(folder).eval()(IDS, MASK)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True))
    (folder / "modules.json").write_text(json.dumps([*steps, {"type": "models.Dense"}]))
    with pytest.raises(PyroccamError):
        pretrained(folder)
    (folder / "modules.json").write_text(json.dumps(steps[:1]))
    (folder / "1_Pooling").mkdir()
    said = folder / "1_Pooling" / "config.json"
    said.write_text(json.dumps({"pooling_mode_cls_token": True}))
    torch.testing.assert_close(pretrained(folder).eval()(IDS, MASK), hidden[:, 0])
    for modes in (["max_tokens"], ["cls_token", "mean_tokens"]):
        said.write_text(json.dumps({f"pooling_mode_{mode}": True for mode in modes}))
        with pytest.raises(PyroccamError):
            pretrained(folder)


@pytest.mark.parametrize(
    "broken", ["none", "weights", "config", "class", "code", "sizes", "pickle", "short", "memory"]
)
def test_what_cannot_be_read_is_told(folder, broken):
    config, weights = folder / "config.json", folder / "model.safetensors"
    words = json.loads(config.read_text())
    changes = {
        "class": {"model_type": "unheard"},
        "code": {"model_type": "unheard", "auto_map": {"AutoConfig": "a.A", "AutoModel": "a.B"}},
        "sizes": {"hidden_size": 16},
    }
    config.write_text(json.dumps({**words, **changes.get(broken, {})}))
    if broken == "config":
        config.write_text("[3]")
    if broken in ("weights", "pickle"):
        weights.unlink()
    if broken == "pickle":
        torch.save({}, folder / "pytorch_model.bin")
    if broken == "short":
        weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PyroccamError), allowing("100kB" if broken == "memory" else "1GB"):
        pretrained(folder / "nowhere" if broken == "none" else folder, 3)
    if broken == "config":
        with pytest.raises(PyroccamError):
            inference.load(folder)


def test_a_head_of_another_task_is_no_classifier(folder):
    config = folder / "config.json"
    words = json.loads(config.read_text())
    config.write_text(json.dumps({**words, "architectures": ["BertForTokenClassification"]}))
    assert inference.load(folder)(IDS, MASK).shape == (2, 32)
