import pytest
import torch
from fitting import run
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.training.requests import pick_device


@pytest.fixture
def gpus(monkeypatch):
    """So many as a test says."""

    def there(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return there


@pytest.mark.parametrize(
    "name",
    ["abacus", "", "meta", "mps", "xla", "hpu", "[/x]", "cuda:-1", "cuda:", "cuda:01", "cuda:x",
     " cpu", "CPU", "cpu\n", "cuda:1\n", "cuda:99999999999", None, 3, True, ["cpu"],
     torch.device("meta")],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("count", [0, 2])
def test_other_devices_are_refused(name, count, gpus):
    gpus(count)
    with pytest.raises(PyroccamError):
        pick_device(name)


def test_a_fit_refuses_them_before_it_begins():
    with pytest.raises(PyroccamError):
        run(device="meta")


def test_cuda_that_is_not_there(gpus):
    gpus(0)
    for name in ("cuda", "cuda:0", torch.device("cuda", 1)):
        with pytest.raises(PyroccamError):
            pick_device(name)
    gpus(1)
    with pytest.raises(PyroccamError):
        pick_device("cuda:1")
    gpus(3)
    with pytest.raises(PyroccamError, match="cuda:2"):
        pick_device("cuda:99")


def test_what_is_there(gpus):
    gpus(0)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    assert pick_device(torch.device("cpu")) == torch.device("cpu")
    gpus(2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cuda:1") == pick_device(torch.device("cuda:1")) == torch.device("cuda", 1)
