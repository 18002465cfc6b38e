"""Hugging Face Trainer: override one method for a second pass on pruned weights in each step.

    pip install transformers accelerate
    python examples/with_hugging_face.py

It trains a small vision transformer from scratch on the digits that come with pof. The checkpoint is an ordinary one,
with the model's own keys.
"""

import random
import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import pof
from pof.data.digit_images import digits


class NestedTrainer(Trainer):
    """Trains the pruned networks too, at a new random sparsity in each step."""

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *more: object) -> Tensor:
        """Run the usual pass, and one on pruned weights, whose gradients are added."""
        loss = super().training_step(model, inputs, *more)
        with pof.pruned(model, random.uniform(0.3, 0.8), masked=True):
            super().training_step(model, inputs, *more)
        return loss


def main() -> None:
    """Train, prune, and print one row per sparsity."""
    torch.set_num_threads(1)  # images of 8 x 8 are too small to share among threads
    random.seed(0)
    torch.manual_seed(0)
    size = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    images = {"image_size": 8, "patch_size": 2, "num_channels": 1}
    model = ViTForImageClassification(ViTConfig(num_labels=10, initializer_range=0.1, **size, **images))
    data = [{"pixel_values": image, "labels": label} for image, label in zip(*digits("train"), strict=True)]
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    rate = {"learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 20}
    batches = {"num_train_epochs": 8, "per_device_train_batch_size": 64, "dataloader_pin_memory": False}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, **batches, **rate, **quiet)
        NestedTrainer(model=model, args=arguments, train_dataset=data).train()

    images, labels = digits("test")
    elastic = pof.Elastic(model.eval())
    for sparsity in (0.0, 0.5, 0.7):
        with elastic.at(sparsity), torch.no_grad():
            accuracy = float((model(images).logits.argmax(1) == labels).float().mean())
            print(f"{elastic.sparsity:4.0%} zeros: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
