"""Which tensors of a state_dict are pruned."""

import pytest
import torch

from pof.planning.plan_of_tensors import plan_of_tensors


@pytest.mark.parametrize(
    "name", ["transformer.wte.weight", "wpe.weight", "tok_emb.weight", "embeddings.word.weight", "pos_embed.weight"]
)
def test_embeddings_are_known_by_their_names(name: str) -> None:
    tensors = {name: torch.randn(8, 4), "member.weight": torch.randn(4, 4), "wted.weight": torch.randn(4, 4)}
    assert [entry.name for entry in plan_of_tensors(tensors)] == ["member.weight", "wted.weight"]
    assert [entry.name for entry in plan_of_tensors(tensors, include=[name])] == [name]
