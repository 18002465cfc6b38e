"""The plan as a value, and that of a compiled, distributed or sharded model."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from plan_reading import names
from torch import nn

import pof
from pof.errors import PlanError
from tests.small_models import Convnet


@pytest.fixture
def process_group() -> Iterator[None]:
    """A real process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
        "420 weights in 4 tensors are pruned, 71.6% of the model's 587",
    ]
    assert repr(plan) == str(plan)


def test_thousands_are_separated_and_one_tensor_is_singular() -> None:
    assert (
        str(pof.plan(nn.Linear(100, 20))).splitlines()[-1]
        == "2,000 weights in 1 tensor are pruned, 99.0% of the model's 2,020"
    )


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
