"""Rows as other libraries keep them: image folders, tar shards, tables of Arrow."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


def images(count=24):
    """Grey images, each of one shade: that of its number."""
    return np.arange(count, dtype=np.uint8)[:, None, None] * np.full((1, 6, 5), 10, np.uint8)


def png(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "png")
    return content.getvalue()


@pytest.fixture
def image_folder(tmp_path):
    for k, image in enumerate(images()):
        (tmp_path / f"class{k % 2}").mkdir(exist_ok=True)
        (tmp_path / f"class{k % 2}" / f"{k:02}.png").write_bytes(png(image))
    return tmp_path


@pytest.mark.parametrize("workers", [0, 1])
def test_folders_of_images(image_folder, workers):
    transform = v2.Compose([v2.ToImage(), v2.Grayscale()])
    folder = ImageFolder(image_folder, transform)
    streamed = data.stream(
        folder, val=4, test=4, class_names=folder.classes, workers=workers,
        batch_transform=v2.RandomHorizontalFlip(1.0),
    )  # fmt: skip
    assert streamed.input_shape == (1, 6, 5)
    assert streamed.class_names == ("class0", "class1")
    ((x, y),) = streamed.parts("train")
    # shades of grey come out a little darker than they went in
    shade = ((x[:, 0, 0, 0] * streamed.x_std + streamed.x_mean) / 10).round().long()
    assert torch.equal(shade % 2, y)
    rows, batch, labels = next(streamed.batches(0, 0, [(0, 16)]))
    assert torch.equal(batch, x[rows])  # one shade, whichever way it is turned
    assert torch.equal(labels, y[rows])


def test_folders_of_images_need_a_transform(image_folder):
    with pytest.raises(PyroccamError):
        data.stream(ImageFolder(image_folder), workers=0)
    with pytest.raises(PyroccamError):
        data.stream(image_folder)


def test_random_transforms_of_items_do_not_depend_on_who_reads_them(image_folder):
    transform = v2.Compose([v2.ToImage(), v2.Grayscale(), v2.RandomErasing(0.5, value=255)])

    def batches(workers, first=0):
        folder = ImageFolder(image_folder, transform)
        streamed = data.stream(folder, val=4, test=4, classes=2, workers=workers)
        x = [batch for _, batch, _ in streamed.batches(0, 1, [(0, 5), (5, 10), (10, 16)][first:])]
        mean, std = streamed.scaling[:2]
        return [(part.double() * std + mean).round() for part in x]

    before = torch.get_rng_state()
    here, there = batches(0), batches(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert torch.equal(batches(0, 2)[0], here[2])
    assert any(bool((part == 255).any()) for part in here)


# which leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:Exception ignored")
def test_shards_of_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as file:
            for k in range(shard, 24, 2):
                for end, content in (("png", png(images()[k])), ("cls", str(k % 2).encode())):
                    info = tarfile.TarInfo(f"{k:02}.{end}")
                    info.size = len(content)
                    file.addfile(info, io.BytesIO(content))
    shards = [str(tmp_path / f"{shard}.tar") for shard in range(2)]
    pipeline = webdataset.WebDataset(shards, shardshuffle=False).decode("l8")
    pipeline = pipeline.to_tuple("png", "cls").map_tuple(np.array, int)
    streamed = data.stream(pipeline, rows=24, val=0, test=0)
    assert streamed.counts["train"] == 24
    rows, x, y = next(streamed.batches(0, 0, [(0, 24)]))
    shade = (x[:, 0, 0, 0].double() * streamed.x_std + streamed.x_mean).round().long() // 10
    assert torch.equal(shade.sort().values, torch.arange(24))
    assert torch.equal(shade % 2, y)
    assert rows.tolist() != list(range(24))
    with pytest.raises(PyroccamError):
        data.stream(pipeline, val=0, test=0)


def test_tables_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    columns = {
        "a": list(map(float, range(40))),
        "b": [1.0] * 40,
        "label": [k % 4 for k in range(40)],
    }
    table = datasets.Dataset.from_dict(columns).with_format("torch")
    streamed = data.stream(table, target="label", val=5, test=5, workers=0)
    assert streamed.input_shape == (2,)
    ((x, y),) = streamed.parts("train")
    number = (x[:, 0].double() * streamed.scaling.x_std[0] + streamed.scaling.x_mean[0]).round()
    assert torch.equal(number.long() % 4, y)
    passing = table.to_iterable_dataset()
    streamed = data.stream(passing, rows=40, target="label", val=0, test=0)
    assert streamed.counts["train"] == 40
