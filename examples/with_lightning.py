"""Lightning: add the penalty with one line in `configure_optimizers`.

    pip install lightning
    python examples/with_lightning.py

It trains a small network on the digits that come with pof, then prunes it and tests it at several sparsities.
"""

import lightning.pytorch as lightning
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import pof
from pof.data.digit_images import digits

EPOCHS = 6
Batch = tuple[Tensor, Tensor]


class Digits(lightning.LightningModule):
    """A network, trained so that it can be pruned afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.net = pof.models.digits_convnet()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Compute the loss as usual."""
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the usual optimiser, and attach the penalty. Lightning passes `step` a closure, which pof supports."""
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        self.attached = pof.attach(self.net, optimizer, tr=(0.9, 0.7), steps=steps, weight=0.3)
        return optimizer


def main() -> None:
    """Train, prune, and print one row per sparsity."""
    torch.set_num_threads(1)  # images of 8 x 8 are too small to share among threads
    lightning.seed_everything(0, verbose=False)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=EPOCHS, enable_model_summary=False, **quiet)
    module = Digits()
    trainer.fit(module, DataLoader(TensorDataset(*digits("train")), batch_size=64, shuffle=True))
    module.attached.remove()
    print(f"penalty joined {module.attached.step} steps")

    images, labels = digits("test")
    elastic = pof.Elastic(module.net.eval(), magnitudes="unit")
    for sparsity in (0.0, 0.5, 0.7):
        with elastic.at(sparsity), torch.no_grad():
            accuracy = float((module.net(images).argmax(1) == labels).float().mean())
            print(f"{elastic.sparsity:4.0%} zeros: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
