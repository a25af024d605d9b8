"""Folders of cut networks of transformers: opened by ``from_pretrained`` alone, the same function.

By whatever version is installed; with 4.57, too.
"""

import json

import folders
import pytest
import torch
from pyroccam import inference
from pyroccam.data import PyroccamError
from pyroccam.inference.cutting import Mask, cut
from pyroccam.models.networks import pretrained
from pyroccam.models.unpacked import copied, unpacked
from torch import nn

transformers = pytest.importorskip("transformers")
HEARD = ("o_proj", "out_lin", "attn.c_proj", "attention.output.dense", "attention.dense")
INNER = ("fc2", "output.dense", "lin2", "down_proj", "mlp.c_proj", "ffn_output")


def inputs(kind):
    if kind == "ViT":
        return {"pixel_values": torch.randn(3, 3, 16, 16)}
    ids = torch.randint(5, 40, (3, 9))
    mask = (torch.arange(9) < torch.tensor([9, 4, 6])[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def layers_of(net):
    """The layers, and where they are."""
    return next((name, m) for name, m in net.named_modules() if isinstance(m, nn.ModuleList))


def narrowed(net, kind):
    """Without the second layer, a head, and inner units that are more from layer to layer."""
    net = unpacked(copied(net)).eval()
    name, layers = layers_of(net)
    net.set_submodule(name, nn.ModuleList([layers[0], layers[2]]))
    masks = {}
    for path, layer in net.named_modules():
        if not isinstance(layer, nn.Linear) or "pooler" in path:
            continue
        units = torch.arange(layer.in_features)
        if path.endswith(HEARD):
            masks[path] = Mask(inputs=units // 8 != 1)
        elif path.endswith(INNER):
            masks[path] = Mask(inputs=units > (30 if f"{name}.0." in path else 20))
    return cut(net, inputs(kind), masks).net


class OwnHead(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(32, 3)

    def forward(self, input_ids, attention_mask):
        return self.head(self.encoder(input_ids, attention_mask)[0][:, 0])


def test_a_head_of_ones_own_is_not_left_out(tmp_path):
    net = OwnHead(folders.configured(transformers, "Bert").bert).eval()
    with pytest.raises(PyroccamError):
        inference.Small(net).save(tmp_path / "small")


def test_the_encoder_of_a_cut_network_writes_no_folder_either(tmp_path, monkeypatch):
    folders.configured(transformers, "Bert").save_pretrained(str(tmp_path / "whole"))
    folders.with_tokenizer(transformers, tmp_path / "whole")
    monkeypatch.chdir(tmp_path)
    net = pretrained("whole").eval()
    monkeypatch.chdir("/")
    masks = {"encoder.encoder.layer.0.output.dense": Mask(inputs=torch.arange(48) > 20)}
    small = cut(net, inputs("Bert"), masks).net
    with pytest.raises(PyroccamError):
        small.encoder.save_pretrained(str(tmp_path / "by-itself"))
    with pytest.warns(UserWarning, match="numbers more"):
        inference.Small(small).save(tmp_path / "small")
    assert (tmp_path / "small" / "tokenizer.json").is_file()


@pytest.mark.parametrize("kind", folders.KINDS)
@pytest.mark.filterwarnings("ignore:.*numbers more than the network")
def test_a_folder_of_a_cut_network_is_opened_by_its_class_alone(kind, tmp_path):
    if kind in ("GPT2", "Llama") and transformers.__version__ < "5":
        pytest.skip("its mask is made in a way that a cut cannot follow")
    whole = folders.configured(transformers, kind)
    small, x = narrowed(whole, kind), inputs(kind)
    with pytest.raises(PyroccamError):
        small.save_pretrained(str(tmp_path))
    assert inference.Small(small).save(tmp_path / "net") == tmp_path / "net"
    again = type(whole).from_pretrained(str(tmp_path / "net")).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**x).logits, small(**x).logits)
    names = ("intermediate.dense.weight", "fc1.weight", "lin1.weight", "gate_proj.weight")
    sizes = {p.shape[0] for n, p in again.named_parameters() if n.endswith(names)}
    assert sizes == (set() if kind == "GPT2" else {27})
    assert len(layers_of(again)[1]) == 2
    numbers = [sum(p.numel() for p in net.parameters()) for net in (small, again, whole)]
    assert numbers[0] < numbers[1] < numbers[2]
    with torch.no_grad():
        torch.testing.assert_close(inference.load(tmp_path / "net")(**x).logits, again(**x).logits)


@pytest.mark.filterwarnings("ignore:.*numbers more than the network")
def test_tokenizer_pooling_and_rows_of_the_table_go_along(tmp_path):
    folder = folders.with_tokenizer(transformers, tmp_path / "net")
    folders.configured(transformers, "Bert", vocab_size=60).bert.save_pretrained(str(folder))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    net, x = pretrained(folder).eval(), inputs("Bert")
    table = net.encoder.get_input_embeddings()
    table.weight = nn.Parameter(table.weight[:45].detach())
    small = cut(net, x).net
    inference.Small(small).save(tmp_path / "small")
    again = pretrained(tmp_path / "small").eval()
    assert again.first
    assert again.encoder.config.vocab_size == 45
    with torch.no_grad():
        torch.testing.assert_close(again(**x), small(**x))
    words = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "small"))
    assert words("w3 w4")["input_ids"] == [2, 8, 9, 3]
    table.weight = nn.Parameter(table.weight[:44].detach())
    with pytest.raises(PyroccamError):
        inference.Small(net).save(tmp_path / "words")
    assert not (tmp_path / "words").exists()


def test_zeros_that_a_configuration_asks_for_are_said(tmp_path):
    net = narrowed(folders.configured(transformers, "Bert"), "Bert")
    with pytest.warns(UserWarning, match="output.dense"):
        inference.Small(net).save(tmp_path)


def test_what_no_configuration_can_say_is_refused_and_not_written(tmp_path):
    config = transformers.XLMRobertaConfig(**folders.TEXT)
    small = narrowed(transformers.XLMRobertaForSequenceClassification(config), "Bert")
    widened = folders.configured(transformers, "Bert")
    widened.bert.encoder.layer[0].output.dense = nn.Linear(48, 40)
    other_act = folders.configured(transformers, "Bert")
    other_act.bert.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
    for net in (small, widened, other_act):
        with pytest.raises(PyroccamError):
            inference.Small(net).save(tmp_path / "net")
    assert not (tmp_path / "net").exists()
    with pytest.raises(PyroccamError):
        small.save_pretrained(str(tmp_path))


def test_a_network_that_is_not_cut_is_written_whole(tmp_path):
    own = folders.configured(transformers, "Llama")
    inference.Small(own).save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 3
    again = type(own).from_pretrained(str(tmp_path))
    assert all(map(torch.equal, own.parameters(), again.parameters()))
