"""Plain training leaves everything to the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import MakeTiny


def test_one_plain_pass_a_step(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0], lambda w: w, lr=0.5)
    method = run.method("dense", 2)
    run.train(method, 0, 1)
    assert run.seen == [[1.0, 2.0], [0.5, 1.0]]
    assert run.weights == [0.25, 0.5]
    method.finish()
    assert run.weights == [0.25, 0.5]
    assert method.figures() == method.state_dict() == {}
