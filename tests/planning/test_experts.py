"""The experts of transformers: a row of the plan is an output unit of one expert, which the outputs show."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.planning.entry import Entry

HIDDEN, INNER, EXPERTS, TOKENS = 8, 4, 3, 6
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 1,
}
FAMILIES = {
    "llama4": ("Llama4TextConfig", "Llama4TextExperts"),
    "mixtral": ("MixtralConfig", "MixtralExperts"),
    "gpt_oss": ("GptOssConfig", "GptOssExperts"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeExperts"),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeExperts"),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3Experts"),
    "dbrx": ("DbrxFFNConfig", "DbrxExperts"),
}


def experts_of(family: str) -> nn.Module:
    """The experts of one family, with random numbers."""
    pytest.importorskip("transformers")
    configuration, name = FAMILIES[family]
    models = f"transformers.models.{family}"
    made = getattr(importlib.import_module(f"{models}.configuration_{family}"), configuration)
    if family == "dbrx":
        config = made(hidden_size=HIDDEN, ffn_hidden_size=INNER, moe_num_experts=EXPERTS, moe_top_k=1)
    else:
        config = made(**SIZES)
    config._experts_implementation = "eager"
    experts: nn.Module = getattr(importlib.import_module(f"{models}.modeling_{family}"), name)(config)
    torch.manual_seed(0)
    for parameter in experts.parameters():
        nn.init.normal_(parameter)
    return experts.eval()


def outputs(family: str, experts: nn.Module, x: Tensor) -> Tensor:
    """What each expert makes of the same tokens: (experts, tokens, hidden)."""
    if family == "llama4":
        found: Tensor = experts(x.repeat(EXPERTS, 1))
        return found.view(EXPERTS, TOKENS, HIDDEN)
    each = [torch.full((TOKENS, 1), expert) for expert in range(EXPERTS)]
    return torch.stack([experts(x, index, torch.ones(TOKENS, 1)).view(TOKENS, HIDDEN) for index in each])


def one_row(entry: Entry, weight: Tensor, number: int) -> Tensor:
    """A mask of the weights of one row."""
    mask = torch.zeros_like(weight, dtype=torch.bool)
    rows, dims = entry.rows(mask)
    others = [dim for dim in range(rows.dim()) if dim not in dims]
    place = torch.unravel_index(torch.tensor(number), [rows.shape[dim] for dim in others])
    index: list[Any] = [slice(None)] * rows.dim()
    for dim, value in zip(others, place, strict=True):
        index[dim] = int(value)
    rows[tuple(index)] = True
    return mask


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_row_is_an_output_unit_of_one_expert(family: str) -> None:
    experts = experts_of(family)
    x = torch.randn(TOKENS, HIDDEN)
    before = outputs(family, experts, x)
    plan = pof.plan(experts)
    assert plan.weights == EXPERTS * 3 * HIDDEN * INNER, "all matrices of the experts take part"
    for entry in plan:
        weight = experts.get_parameter(entry.name)
        to_outputs = entry.name.endswith(("down_proj", "w2"))
        count = entry.layout.count(entry.shape)
        assert count * (INNER if to_outputs else HIDDEN) == entry.weights
        for number in range(count):
            dense = weight.clone()
            weight[one_row(entry, weight, number)] = 0.0
            change = outputs(family, experts, x) - before
            weight.copy_(dense)
            changed = change.abs().amax((1, 2)) > 1e-6
            assert int(changed.sum()) == 1, "one expert"
            of_one = change[changed][0]
            if to_outputs:
                assert int((of_one.abs().amax(0) > 1e-6).sum()) == 1, "one output unit"
            else:
                # An inner unit moves the outputs of all tokens along one line.
                assert torch.linalg.matrix_rank(of_one, rtol=1e-4) == 1, "one inner unit"


def test_embeddings_beside_experts_are_not_pruned() -> None:
    class TokenExperts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed, self.w = (nn.Parameter(torch.randn(*shape)) for shape in ((1, 50, 16), (4, 16, 16)))

    with pytest.warns(UserWarning, match="pos_embed is not pruned"):
        plan = pof.plan(nn.ModuleList([TokenExperts()]))
    assert [entry.name for entry in plan] == ["0.w"]
