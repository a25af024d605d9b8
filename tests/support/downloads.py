"""Small files as torchvision leaves them of what a person downloads."""

import pickle

import numpy as np
import scipy.io
import torchvision

__all__ = ["downloaded"]


def downloaded(root, monkeypatch, rows=30):
    """CIFAR-100 and SVHN with so many rows each, training and test alike: images
    ``(rows, 3, 32, 32)`` and labels."""
    # Small files cannot have the right checksums.
    for module in (torchvision.datasets.cifar, torchvision.datasets.svhn):
        monkeypatch.setattr(module, "check_integrity", lambda *args: True)
    images = np.random.default_rng(0).integers(0, 256, (rows, 3, 32, 32), np.uint8)
    labels = np.arange(rows) % 10
    folder = root / "cifar-100-python"
    folder.mkdir()
    (root / "SVHN").mkdir()
    for split in ("train", "test"):
        batch = {"data": images.reshape(rows, -1), "fine_labels": labels.tolist()}
        (folder / split).write_bytes(pickle.dumps(batch))
        mat = {"X": images.transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)[:, None]}
        scipy.io.savemat(root / f"SVHN/{split}_32x32.mat", mat)
    names = [f"thing {i}" for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    return images, labels
