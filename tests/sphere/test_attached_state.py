"""`pof.attach` ended, saved and resumed, and the model, which stays the plain module that it was."""

import copy
import io
import pickle

import pytest
import torch
from attached_training import (
    SETTINGS,
    STEPS,
    assert_same,
    batches,
    plain_steps,
    sgd,
    with_attach,
)
from torch.optim.swa_utils import AveragedModel

import pof
from pof.errors import PofError
from tests.small_models import assert_bit_equal, tanh_convnet

# Ending, saving, resuming


def test_remove_ends_it() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    plain = copy.deepcopy(model)
    other = sgd(plain.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    attached.remove()
    plain_steps(model, optimizer, batches(3))
    plain_steps(plain, other, batches(3))
    assert_bit_equal(model, plain)
    assert attached.step == 2


@pytest.mark.parametrize("refresh", [1, 4])
def test_a_resumed_training_is_bit_equal(refresh: int) -> None:
    """Saved after 3 of 6 steps, in the middle of what masks found at step 0 are used for."""
    settings = {**SETTINGS, "refresh": refresh}
    data, model = batches(), tanh_convnet()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **settings)
    plain_steps(model, optimizer, data[:3])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), attached.state_dict()], file)
    plain_steps(model, optimizer, data[3:])

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = tanh_convnet()
    resumed_optimizer = sgd(resumed.parameters())
    again = pof.attach(resumed, resumed_optimizer, **settings)
    for part, state in zip((resumed, resumed_optimizer, again), saved, strict=True):
        part.load_state_dict(state)
    plain_steps(resumed, resumed_optimizer, data[3:])
    assert again.step == STEPS
    assert_bit_equal(resumed, model)


def test_a_resume_without_its_state_would_be_another_training() -> None:
    """The test above means something only if the state matters."""
    data, model = batches(), tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, data[:3])
    forgetful = copy.deepcopy(model)
    other = sgd(forgetful.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plain_steps(model, optimizer, data[3:])
    pof.attach(forgetful, other, **SETTINGS)
    plain_steps(forgetful, other, data[3:])
    assert not torch.allclose(forgetful[2].weight, model[2].weight, atol=1e-4)


@pytest.mark.parametrize("sphere", [True, False])
def test_the_state_of_a_training_with_other_settings_is_refused(sphere: bool) -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    first = pof.attach(model, optimizer, sphere=not sphere, **SETTINGS)
    saved = first.state_dict()
    first.remove()
    attached = pof.attach(model, optimizer, sphere=sphere, **SETTINGS)
    with pytest.raises(PofError, match="sphere"):
        attached.load_state_dict(saved)


def test_masks_of_another_plan_are_refused() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    wide = pof.attach(model, optimizer, sphere=False, refresh=2, **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    wide.remove()
    narrow = pof.attach(model, optimizer, sphere=False, refresh=2, include="6", **SETTINGS)
    with pytest.raises(PofError, match="another plan"):
        narrow.load_state_dict(wide.state_dict())


# The model stays the plain module that it was


def test_the_model_is_the_same_module_with_the_same_keys() -> None:
    model = tanh_convnet()
    before = (list(model.state_dict()), [type(m) for m in model.modules()], [id(p) for p in model.parameters()])
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    assert_bit_equal(model, tanh_convnet())
    plain_steps(model, optimizer, batches(1))
    assert (list(model.state_dict()), [type(m) for m in model.modules()], [id(p) for p in model.parameters()]) == before


def test_deepcopy_and_pickle_work_and_the_copies_are_free() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    at_one = copy.deepcopy(model.state_dict())
    plain_steps(model, optimizer, batches(2))
    for duplicate in copies:
        assert all(torch.equal(value, at_one[name]) for name, value in duplicate.state_dict().items())
        plain_steps(duplicate, sgd(duplicate.parameters()), batches(1))
    assert_bit_equal(copies[0], copies[1])


def test_an_average_of_the_weights_follows_the_training() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    average = AveragedModel(model)
    seen = []
    for batch in batches(3):
        plain_steps(model, optimizer, [batch])
        average.update_parameters(model)
        seen.append(model[2].weight.detach().clone())
    torch.testing.assert_close(average.module[2].weight, torch.stack(seen).mean(0))


def test_a_compiled_model_trains_the_same() -> None:
    model = tanh_convnet()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(compiled.parameters())
    pof.attach(compiled, optimizer, **SETTINGS)
    plain_steps(compiled, optimizer, batches())
    assert_same(model, with_attach())
