"""A training loop of your own that learns every sparsity at once, with a second pass on pruned weights in each step.

    python examples/own_loop.py

It trains a small network on the digits that come with pof, with and without the second pass, on the same batches. Then
it prunes both and tests them without further training.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.data.digit_images import digits

EPOCHS, BATCH, SPARSITIES = 4, 64, (0.0, 0.5, 0.8, 0.9)


def train(model: nn.Module, images: Tensor, labels: Tensor, *, nested: bool) -> None:
    """Train as usual; `Nested.backward` takes the place of `backward()`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    two_passes = pof.Nested(model, low=0.5, high=0.9)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            if nested:
                two_passes.backward(lambda part=part: F.cross_entropy(model(images[part]), labels[part]))
            else:
                F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    model.eval()


def accuracies(model: nn.Module, images: Tensor) -> list[float]:
    """The test accuracy at each sparsity, with BatchNorm statistics re-estimated from training images."""
    elastic = pof.Elastic(model)
    test_images, test_labels = digits("test")
    found = []
    for sparsity in SPARSITIES:
        with elastic.at(sparsity), torch.no_grad():
            elastic.calibrate([images])
            found.append(float((model(test_images).argmax(1) == test_labels).float().mean()))
    return found


def main() -> None:
    """Train both networks, and print one row for each."""
    torch.set_num_threads(1)  # images of 8 x 8 are too small to share among threads
    images, labels = digits("train")
    print("sparsity ", *(f"{sparsity:6.0%}" for sparsity in SPARSITIES))
    for name in ("plain", "nested"):
        torch.manual_seed(0)
        model = pof.models.digits_convnet()
        train(model, images, labels, nested=name == "nested")
        print(f"{name:9}", *(f"{accuracy:6.1%}" for accuracy in accuracies(model, images)))


if __name__ == "__main__":
    main()
