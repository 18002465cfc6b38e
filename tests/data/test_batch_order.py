from typing import Any

import numpy as np
import pytest

from pof.data.batch_order import EpochOrder, in_order, stream
from pof.errors import PofError


def test_streams_of_different_keys_have_nothing_in_common() -> None:
    keys = [(), (0,), (0, 0), (1, 0), (0, 1), (0, 10), (10, 0), (2**40, 0), ("order", 0, 0), ("plain", 0, 0)]
    firsts = {stream(*key).randint(2**31) for key in keys}
    assert len(firsts) == len(keys)
    assert stream("order", np.int64(3)).randint(2**31) == stream("order", 3).randint(2**31)


def test_the_stream_is_the_same_for_ever() -> None:
    """A record made today can be made again: a change here changes every trained network."""
    assert stream("order", 0, 0).permutation(10).tolist() == [6, 3, 9, 1, 7, 4, 2, 8, 0, 5]


def test_an_epoch_gives_whole_batches_of_different_images() -> None:
    batches = list(EpochOrder(images=23, batch=4, seed=0, epoch=0))
    assert [index for index, _ in batches] == [0, 1, 2, 3, 4]
    members = np.concatenate([members for _, members in batches])
    assert len(set(members.tolist())) == 20
    assert set(members.tolist()) <= set(range(23))


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = {tuple(next(iter(EpochOrder(100, 50, seed, epoch)))[1]) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("start", [0, 1, 3, 5])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_joined_are_the_batch_from_any_start(start: int, ranks: int) -> None:
    whole = [members.tolist() for _, members in EpochOrder(23, 4, 7, 1)][start:]
    parts = [[members for _, members in EpochOrder(23, 4, 7, 1, start, rank, ranks)] for rank in range(ranks)]
    assert [np.concatenate(part).tolist() for part in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize(("images", "batch", "ranks"), [(10, 4, 1), (10, 4, 2), (11, 4, 4), (1, 4, 4), (7, 8, 2)])
def test_in_order_has_every_image_once(images: int, batch: int, ranks: int) -> None:
    parts = [list(in_order(images, batch, rank, ranks)) for rank in range(ranks)]
    assert [int(i) for part in parts for members in part for i in members] == list(range(images))
    for part in parts:
        assert all(0 < len(members) <= batch // ranks for members in part)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch=0 must be"),
        ({"batch": 2.0}, "batch=2.0 must be"),
        ({"batch": 24}, "batch=24 must be at most 23"),
        ({"batch": 5, "ranks": 2}, "batch=5 must be a multiple of ranks=2"),
        ({"ranks": 0}, "ranks=0"),
        ({"rank": 1}, "rank=1 must be a whole number, 0 to 0"),
        ({"rank": -1}, "rank=-1"),
        ({"seed": -1}, "seed=-1 must be a whole number, 0 or more"),
        ({"seed": True}, "seed=True"),
        ({"epoch": 0.5}, "epoch=0.5"),
        ({"start": 6}, "start=6 must be a whole number, 0 to 5"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        EpochOrder(**{"images": 23, "batch": 4, "seed": 0, "epoch": 0, **settings})
