"""Which weights are pruned: every kind of layer, the first convolution, ties, globs, overrides, and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import pof
from pof.errors import PlanError, PofError
from pof.planning.entry import Entry


def names(plan: pof.Plan) -> list[str]:
    return [entry.name for entry in plan]


def only(model: nn.Module, **options: Any) -> Entry:
    """The one entry of the plan of `model`."""
    (entry,) = pof.plan(model, **options)
    return entry


class Convnet(nn.Module):
    """stem (the first convolution), two blocks, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3))
        self.fc = nn.Linear(6, 5)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A real process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Kinds of layers


@pytest.mark.parametrize(
    ("layer", "shape", "groups"),
    [
        (nn.Conv1d(4, 6, 3), (6, 4, 3), None),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 2, 3, 3), None),
        (nn.Conv3d(4, 6, 1), (6, 4, 1, 1, 1), None),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (4, 3, 3), 2),
        (nn.ConvTranspose2d(4, 6, 3), (4, 6, 3, 3), 1),
        (nn.ConvTranspose3d(4, 6, 1, groups=2), (4, 3, 1, 1, 1), 2),
        (nn.Linear(4, 6), (6, 4), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_every_kind_of_layer_takes_part(layer: nn.Module, shape: tuple[int, ...], groups: int | None) -> None:
    entry = only(nn.Sequential(nn.Conv2d(3, 3, 1), layer))
    assert (entry.name, entry.kind, entry.shape, entry.groups) == ("1.weight", type(layer).__name__, shape, groups)
    assert entry.weights == layer.weight.numel()


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_row_of_a_convolution_is_all_that_makes_one_output_channel(layer: Any, groups: int) -> None:
    check_rows(layer(4, 6, 2, groups=groups, bias=False))


@pytest.mark.parametrize("layer", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_row_of_a_transposed_convolution_lies_in_dimension_1_of_its_group(layer: Any, groups: int) -> None:
    check_rows(layer(4, 6, 2, groups=groups, bias=False))


def check_rows(layer: Any) -> None:
    """Emptying row j, counted over all rows in order, silences output channel j and no other."""
    entry = only(layer, include="weight")
    inputs = torch.rand(1, 4, *[3] * (layer.weight.dim() - 2))
    with torch.no_grad():
        layer.weight.abs_()
        for channel in range(6):
            weight = layer.weight.clone()
            rows, dims = entry.rows(layer.weight)
            kept = [i for i in range(rows.dim()) if i not in dims]
            index = torch.unravel_index(torch.tensor(channel), [rows.shape[i] for i in kept])
            where: list[Any] = [slice(None)] * rows.dim()
            for dim, i in zip(kept, index, strict=True):
                where[dim] = i
            rows[tuple(where)] = 0
            silent = (layer(inputs) == 0).flatten(2).all(2)[0]
            assert silent.tolist() == [j == channel for j in range(6)]
            layer.weight.copy_(weight)


class TimmConv(nn.Conv2d):
    """What other libraries do: a subclass with its own forward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1.0)


class ClipLinear(nn.Linear):
    pass


class ModernAttention(nn.MultiheadAttention):
    pass


def test_subclasses_of_other_libraries_are_caught() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = TimmConv(3, 4, 3)
            self.conv = TimmConv(4, 4, 3)
            self.attention = ModernAttention(4, 2)
            self.head = ClipLinear(4, 2)

    plan = pof.plan(Model())
    assert names(plan) == ["conv.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert [entry.kind for entry in plan][::3] == ["TimmConv", "ClipLinear"]
    assert plan.left_out == (("stem.weight", "the first convolution"),)


def test_the_projections_of_attention_take_part() -> None:
    joint, separate = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    assert names(pof.plan(joint)) == ["in_proj_weight", "out_proj.weight"]
    plan = pof.plan(separate)
    assert names(plan) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert [entry.shape for entry in plan] == [(8, 8), (8, 6), (8, 4), (8, 8)]


def test_a_transformer_takes_part_with_every_matrix() -> None:
    model = nn.Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16, batch_first=True)
    matrices = {name for name, parameter in model.named_parameters() if parameter.dim() == 2}
    assert len(matrices) == 10
    assert set(names(pof.plan(model))) == matrices


def test_layers_that_are_neither_take_no_part() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4), nn.Bilinear(4, 4, 4), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match=r"2\.weight_.h_l0 is not pruned: recurrent layers are not pruned"):
        assert names(pof.plan(model)) == ["4.weight"]


def test_a_single_layer_is_a_model_too() -> None:
    assert names(pof.plan(nn.Linear(4, 2))) == ["weight"]


# The first convolution


def test_the_first_convolution_in_the_order_of_named_modules_is_left_out() -> None:
    plan = pof.plan(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Conv1d(4, 4, 1)), nn.Conv2d(4, 4, 1)))
    assert names(plan) == ["0.weight", "2.weight"]
    assert plan.left_out == (("1.0.weight", "the first convolution"),)


def test_a_first_transposed_convolution_is_the_first_convolution() -> None:
    assert names(pof.plan(nn.Sequential(nn.ConvTranspose2d(4, 4, 1), nn.Conv2d(4, 4, 1)))) == ["1.weight"]


def test_a_model_without_convolutions_leaves_nothing_out() -> None:
    plan = pof.plan(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert names(plan) == ["0.weight", "1.weight"]
    assert plan.left_out == ()


def test_excluding_the_first_convolution_does_not_make_the_second_one_the_first() -> None:
    plan = pof.plan(Convnet(), exclude="stem")
    assert plan.left_out == (("stem.weight", "excluded"),)
    assert names(plan)[0] == "layer1.0.weight"


# Ties


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))


def same_parameter(model: Tied) -> None:
    model.c.weight = model.a.weight


def same_storage(model: Tied) -> None:
    model.c.weight = nn.Parameter(model.a.weight.data)


@pytest.mark.parametrize("tie", [same_parameter, same_storage])
def test_tied_weights_are_one_entry_and_stay_tied(tie: Callable[[Tied], None]) -> None:
    model = Tied()
    tie(model)
    plan = pof.plan(model)
    assert [(entry.name, entry.tied) for entry in plan] == [("a.weight", ("c.weight",)), ("b.weight", ())]
    assert plan.weights == 32
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert model.a.weight.data_ptr() == model.c.weight.data_ptr()
    assert torch.count_nonzero(model.c.weight) == 8
    with torch.no_grad():
        model.a.weight.fill_(7)
    assert torch.equal(model.c.weight, model.a.weight)


def test_a_module_used_twice_is_one_entry_and_stays_one_module() -> None:
    model = Tied()
    model.c = model.a
    assert names(pof.plan(model)) == ["a.weight", "b.weight"]
    pof.Elastic(model).prune(0.5)
    assert model.c is model.a


def test_a_module_used_twice_answers_to_both_names() -> None:
    model = Tied()
    model.c = model.a
    assert names(pof.plan(model, exclude="c")) == ["b.weight"]
    assert names(pof.plan(model, include="c")) == ["a.weight"]


def test_equal_values_in_different_memory_are_not_tied() -> None:
    model = Tied()
    with torch.no_grad():
        model.c.weight.copy_(model.a.weight)
    assert len(pof.plan(model)) == 3


def test_two_views_of_one_storage_that_are_different_weights_are_not_tied() -> None:
    model, joint = Tied(), torch.rand(8, 4)
    model.a.weight, model.c.weight = nn.Parameter(joint[:4]), nn.Parameter(joint[4:])
    assert len(pof.plan(model)) == 3


def test_tied_weights_answer_to_both_names() -> None:
    model = Tied()
    same_parameter(model)
    assert names(pof.plan(model, exclude="c")) == ["b.weight"]
    assert names(pof.plan(model, include="c")) == ["a.weight"]
    assert [entry.sparsity for entry in pof.plan(model, sparsities={"c": 0.25})] == [0.25, None]


def test_a_convolution_tied_to_the_first_is_left_out_with_it() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert names(pof.plan(model)) == ["2.weight"]


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 10, bias=False)
        self.lm_head.weight = self.embedding.weight


def test_a_weight_tied_to_an_embedding_is_left_out_with_a_notice() -> None:
    with pytest.warns(UserWarning, match=r"lm_head\.weight is not pruned: it is tied to an embedding"):
        plan = pof.plan(LanguageModel())
    assert names(plan) == ["body.weight"]
    assert [name for name, _ in plan.left_out] == ["lm_head.weight"]


def test_a_weight_in_the_memory_of_an_embedding_is_left_out_too() -> None:
    model = LanguageModel()
    model.lm_head.weight = nn.Parameter(model.embedding.weight.data)
    with pytest.warns(UserWarning, match=r"lm_head\.weight is not pruned: it is tied to an embedding"):
        assert names(pof.plan(model)) == ["body.weight"]


# Weights that are computed from others


@pytest.mark.parametrize(
    "compute",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")),
    ],
    ids=["parametrised weight_norm", "spectral_norm", "torch's prune", "old weight_norm"],
)
def test_a_computed_weight_is_left_out_with_a_notice(compute: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(compute(nn.Linear(4, 4)), nn.Linear(4, 4))
    before = model.state_dict().keys()
    with pytest.warns(UserWarning, match=r"0\.weight is not pruned: it is no parameter .* make it one"):
        plan = pof.plan(model)
    assert names(plan) == ["1.weight"]
    assert model.state_dict().keys() == before


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LanguageModel(), "lm_head"),
        (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4)), "0"),
    ],
    ids=["tied to an embedding", "parametrised"],
)
def test_excluding_what_cannot_be_pruned_silences_the_notice(model: nn.Module, name: str) -> None:
    # Warnings are errors in these tests.
    plan = pof.plan(model, exclude=name)
    assert len(plan) == 1
    assert plan.left_out == ((f"{name}.weight", "excluded"),)


def test_including_others_silences_the_notice() -> None:
    assert pof.plan(LanguageModel(), include="body").left_out == (("lm_head.weight", "excluded"),)


def test_including_only_what_cannot_be_pruned_is_an_error_that_says_why() -> None:
    with pytest.raises(PlanError, match=r"lm_head\.weight is left out \(it is tied to an embedding"):
        pof.plan(LanguageModel(), include="lm_head")


# Globs


@pytest.mark.parametrize(
    ("glob", "excluded"),
    [
        ("fc.weight", ["fc.weight"]),
        ("fc", ["fc.weight"]),
        ("layer1", ["layer1.0.weight", "layer1.2.weight"]),
        ("layer1.2", ["layer1.2.weight"]),
        ("layer*", ["layer1.0.weight", "layer1.2.weight", "layer2.0.weight"]),
        ("layer?.0", ["layer1.0.weight", "layer2.0.weight"]),
        ("layer[!1]", ["layer2.0.weight"]),
        ("*.2.weight", ["layer1.2.weight"]),
    ],
)
def test_globs_match_weights_modules_and_their_parents(glob: str, excluded: list[str]) -> None:
    everything = ["layer1.0.weight", "layer1.2.weight", "layer2.0.weight", "fc.weight"]
    assert names(pof.plan(Convnet(), exclude=(glob,))) == [name for name in everything if name not in excluded]
    assert names(pof.plan(Convnet(), include=(glob,))) == excluded


def test_globs_match_whole_names_and_their_case() -> None:
    model = nn.Sequential()
    model.fc, model.fc2, model.FC = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    assert names(pof.plan(model, include="fc")) == ["fc.weight"]


def test_include_takes_the_first_convolution_too() -> None:
    assert names(pof.plan(Convnet(), include=("stem", "fc"))) == ["stem.weight", "fc.weight"]
    assert len(pof.plan(Convnet(), include="*")) == 5


def test_exclude_wins_over_include() -> None:
    assert names(pof.plan(Convnet(), include="layer1", exclude="layer1.0")) == ["layer1.2.weight"]


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_string_is_one_glob_and_an_iterator_is_read_once(option: str) -> None:
    wanted = names(pof.plan(Convnet(), **{option: ("fc",)}))
    assert names(pof.plan(Convnet(), **{option: "fc"})) == wanted
    assert names(pof.plan(Convnet(), **{option: iter(["fc"])})) == wanted


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize("glob", ["fc1", "", "layer3.*", "bn"])
def test_a_glob_that_matches_nothing_is_an_error(option: str, glob: str) -> None:
    with pytest.raises(PlanError, match=r"matches no weight or module.* print\(pof\.plan\(model\)\) lists them") as e:
        pof.plan(Convnet(), **{option: ("layer1", glob)})
    assert f"{option}={glob!r}" in str(e.value)


def test_a_misspelt_glob_is_told_the_nearest_name() -> None:
    with pytest.raises(PlanError, match=r"the nearest name is 'layer1'"):
        pof.plan(Convnet(), exclude="layr1")


def test_everything_excluded_is_nothing_to_prune() -> None:
    with pytest.raises(PlanError, match="nothing to prune"):
        pof.plan(Convnet(), exclude="*")


# Sparsities of their own


def test_overrides_go_by_glob_and_the_last_one_counts() -> None:
    plan = pof.plan(Convnet(), sparsities={"layer*": 0.9, "layer1.2": 0, "fc.weight": 0.5})
    assert {entry.name: entry.sparsity for entry in plan} == {
        "layer1.0.weight": 0.9,
        "layer1.2.weight": 0.0,
        "layer2.0.weight": 0.9,
        "fc.weight": 0.5,
    }


def test_without_overrides_no_sparsity_is_fixed() -> None:
    assert {entry.sparsity for entry in pof.plan(Convnet(), sparsities={})} == {None}


@pytest.mark.parametrize("value", [70, -0.1, 1.0, float("nan"), "0.5", None, True])
def test_an_override_out_of_bounds_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(PofError, match=r"sparsities\['fc'\]=.* must be .*\[0, 1\)") as caught:
        pof.plan(Convnet(), sparsities={"fc": value})
    assert repr(value) in str(caught.value)


def test_an_override_of_what_is_not_pruned_is_an_error() -> None:
    with pytest.raises(PlanError, match="sparsities='nope' matches no weight or module of the plan"):
        pof.plan(Convnet(), sparsities={"nope": 0.5})
    with pytest.raises(PlanError, match=r"sparsities='stem': .* takes no part .the first convolution.; include="):
        pof.plan(Convnet(), sparsities={"stem": 0.5})


# Nothing to prune, and what cannot be pruned


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.BatchNorm2d(4)])
def test_a_model_without_such_layers_has_nothing_to_prune(model: nn.Module) -> None:
    with pytest.raises(PlanError, match=f"nothing to prune in {type(model).__name__}: it has no convolution or linear"):
        pof.plan(model)


def test_a_lone_convolution_is_told_how_to_take_part() -> None:
    with pytest.raises(PlanError, match=r"include=\('weight',\) takes it in"):
        pof.plan(nn.Conv2d(3, 3, 3))
    assert names(pof.plan(nn.Conv2d(3, 3, 3), include=("weight",))) == ["weight"]


@pytest.mark.parametrize("model", [None, "resnet18", nn.Linear, torch.zeros(3)])
def test_what_is_no_module_is_an_error(model: Any) -> None:
    with pytest.raises(PlanError, match=r"pass a torch\.nn\.Module"):
        pof.plan(model)


def with_weight(weight: Tensor) -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


UNPRUNABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "meta": (lambda: nn.Linear(4, 4, device="meta"), "is on the meta device and has no values: load the weights first"),
    "lazy": (lambda: nn.LazyLinear(4), "has no shape yet .* run one batch"),
    "int8": (lambda: with_weight(torch.ones(4, 4, dtype=torch.int8)), "is torch.int8: pof prunes dense .*float32"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "is torch.complex64"),
    "float8": (lambda: with_weight(torch.ones(4, 4).to(torch.float8_e4m3fn)), "is torch.float8_e4m3fn"),
    "quantised": (
        lambda: with_weight(torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8)),
        "is torch.qint8: .* prune before quantising, or exclude it",
    ),
    "sparse": (lambda: with_weight(torch.eye(4).to_sparse()), "is torch.sparse_coo"),
    "mkldnn": (lambda: with_weight(torch.eye(4).to_mkldnn()), "is torch._mkldnn"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", UNPRUNABLE)
def test_a_weight_that_cannot_be_pruned_is_an_error_unless_excluded(kind: str) -> None:
    make, reason = UNPRUNABLE[kind]
    model = nn.Sequential(nn.Linear(4, 4), make())
    with pytest.raises(PlanError, match=rf"weight '1\.weight' {reason}"):
        pof.plan(model)
    assert names(pof.plan(model, exclude="1")) == ["0.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_point_type_takes_part(dtype: torch.dtype) -> None:
    assert names(pof.plan(nn.Linear(4, 4, dtype=dtype))) == ["weight"]


def test_a_lazy_layer_takes_part_after_its_first_batch() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    model(torch.ones(1, 3))
    assert only(model).shape == (4, 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_an_empty_weight_takes_no_part() -> None:
    assert names(pof.plan(nn.Sequential(nn.Linear(0, 4), nn.Linear(4, 4)))) == ["1.weight"]


# Wrapped models


def test_a_compiled_model_has_the_plan_of_the_model() -> None:
    assert pof.plan(torch.compile(Convnet(), backend="eager")) == pof.plan(Convnet())


@pytest.mark.usefixtures("process_group")
def test_a_distributed_model_has_the_plan_of_the_model() -> None:
    model = Convnet()
    wrapped = nn.parallel.DistributedDataParallel(model)
    plan = pof.plan(wrapped)
    assert plan == pof.plan(model)
    assert plan.parameters(wrapped)["fc.weight"] is model.fc.weight
    assert pof.plan(torch.compile(wrapped, backend="eager")) == plan


@pytest.mark.usefixtures("process_group")
def test_a_sharded_model_gets_a_clear_error() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Convnet()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for use in (pof.plan, pof.Elastic, pof.Sphere, lambda m: pof.attach(m, optimizer, steps=9)):
        with pytest.raises(PlanError, match=r"sharded \(FSDP\).* DistributedDataParallel"):
            use(model)


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching:UserWarning", "ignore:.*FSDP.*:FutureWarning")
def test_the_older_way_of_sharding_gets_the_same_error() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with pytest.raises(PlanError, match=r"sharded \(FSDP\)"):
        pof.plan(FullyShardedDataParallel(Convnet(), device_id=torch.device("cpu")))


# The plan as a value


def test_the_plan_prints_as_a_table() -> None:
    model = Convnet()
    model.head = nn.Linear(5, 6)
    model.head.weight = nn.Parameter(torch.rand(6, 5))
    model.again = nn.Linear(5, 6)
    model.again.weight = model.head.weight
    plan = pof.plan(model, exclude="layer1.2", sparsities={"head": 0.5})
    assert str(plan).splitlines() == [
        "weight           layer   shape    weights",
        "layer1.0.weight  Conv2d  4x4x3x3      144",
        "layer2.0.weight  Conv2d  6x4x3x3      216",
        "fc.weight        Linear  5x6           30",
        "head.weight      Linear  6x5           30  tied: again.weight, always 0.5",
        "left out: stem.weight (the first convolution)",
        "left out: layer1.2.weight (excluded)",
        "420 weights in 4 tensors are pruned",
    ]
    assert repr(plan) == str(plan)


def test_thousands_are_separated_and_one_tensor_is_singular() -> None:
    assert str(pof.plan(nn.Linear(100, 20))).splitlines()[-1] == "2,000 weights in 1 tensor are pruned"


def test_the_plan_gives_the_models_own_parameters() -> None:
    model = Convnet()
    parameters = pof.plan(model).parameters(model)
    assert list(parameters) == names(pof.plan(model))
    assert parameters["layer1.2.weight"] is model.layer1[2].weight


def test_planning_leaves_the_model_untouched() -> None:
    model = Convnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pof.plan(model, exclude="fc", sparsities={"layer1": 0.5})
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
