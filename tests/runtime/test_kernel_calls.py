"""The sparse kernels against torch, over all kinds of convolutions, fast and portable."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from pof.core.library import core
from pof.runtime.execution_steps import CopyIn, MaxPool
from pof.runtime.image_geometry import Geometry, lanes_for
from pof.runtime.sparse_conv import ConvSpec, SparseConv

pytestmark = pytest.mark.skipif(core() is None, reason="the core was not built")


def convolve(images: Tensor, spec: ConvSpec, residual: Tensor | None, pad: int, threads: int, plain: bool) -> Tensor:
    """One convolution by itself: in, through the kernel, and out again; checks that paddings stay zero."""
    count, channels, height, width = images.shape
    rows, columns = spec.out_size(height, width)
    least = columns + spec.reach[1] // spec.stride[1] if spec.strided else width + spec.padding[1]
    out = Geometry(count, len(spec.weight), rows, columns, pad, pad, max(columns + pad, least), lanes_for(count))
    source: Any = Geometry(count, channels, height, width, *spec.padding, out.pitch, out.lanes)
    if spec.strided:
        source = spec.phases(count, channels, out)
    inside, outside = source.buffer(), out.buffer()
    size = spec.needed(out) if spec.strided else (height, width)
    CopyIn("x", tuple(images.shape), 0, source, spec if spec.strided else None, size, threads).bind([inside])(
        {"x": images}
    )
    other = None
    if residual is not None:
        other = out.buffer()
        CopyIn("x", tuple(residual.shape), 0, out, None, (rows, columns), threads).bind([other])({"x": residual})
    kernel = SparseConv(spec, source, out, threads)
    kernel(inside, other, outside, plain=plain)
    found = out.view(outside).clone()
    if out.lanes == 1:
        out.view(outside).zero_()
        inner = outside[: -128 or None].reshape(-1)
        planes = inner[: out.blocks * out.block].reshape(-1, out.plane)
        used = (out.height + 2 * out.pad_y) * out.pitch + out.pad_x
        assert not planes[:, :used].any(), "what lies around the pixels is zero"
    return found


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.sampled_from([1, 1, 1, 2, 4]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (1, 3), (3, 1), (7, 7), (2, 2)]))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3)]))
    return {
        "seed": draw(st.integers(0, 2**20)),
        "images": draw(st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 33])),
        "groups": groups,
        "inputs": groups * draw(st.sampled_from([1, 2, 3, 5, 17])),
        "outputs": groups * draw(st.sampled_from([1, 2, 5, 16])),
        "kernel": kernel,
        "stride": draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 3)])),
        "padding": tuple(draw(st.integers(0, size)) for size in kernel),
        "dilation": dilation,
        "height": dilation[0] * (kernel[0] - 1) + draw(st.integers(1, 16)),
        "width": dilation[1] * (kernel[1] - 1) + draw(st.integers(1, 30)),
        "sparsity": draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        "residual": draw(st.booleans()),
        "clip": draw(st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0), (-0.5, 0.25)])),
        "pad": draw(st.integers(0, 2)),
        "threads": draw(st.integers(1, 3)),
        "plain": draw(st.booleans()),
        "channels_last": draw(st.booleans()),
    }


@settings(max_examples=250, deadline=None)
@given(cases())
def test_any_convolution(case: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(case["seed"])
    images = torch.randn(case["images"], case["inputs"], case["height"], case["width"], generator=generator)
    if case["channels_last"]:
        images = images.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(case["outputs"], case["inputs"] // case["groups"], *case["kernel"], generator=generator)
    weight[torch.rand(weight.shape, generator=generator) < case["sparsity"]] = 0.0
    bias = torch.randn(case["outputs"], generator=generator)
    places = (case["stride"], case["padding"], case["dilation"], case["groups"])
    wanted = F.conv2d(images.double(), weight.double(), bias.double(), *places)
    residual = torch.randn(wanted.shape, generator=generator) if case["residual"] else None
    wanted = (wanted if residual is None else wanted + residual.double()).clamp(*case["clip"])
    spec = ConvSpec(weight.numpy(), bias.numpy(), *places, *case["clip"])
    found = convolve(images, spec, residual, case["pad"], case["threads"], case["plain"])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "images"), [(513, 3, 9, 1), (64, 513, 7, 2), (130, 65, 14, 16), (1, 1, 1, 1)]
)
def test_many_channels(inputs: int, outputs: int, size: int, images: int, plain: bool) -> None:
    torch.manual_seed(inputs)
    data, weight = torch.randn(images, inputs, size, size), torch.randn(outputs, inputs, 3, 3) / inputs**0.5
    weight[torch.rand_like(weight) < 0.8] = 0.0
    spec = ConvSpec(weight.numpy(), torch.zeros(outputs).numpy(), padding=(1, 1))
    wanted = F.conv2d(data.double(), weight.double(), padding=1)
    for threads in (1, 2):
        found = convolve(data, spec, None, 1, threads, plain)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_by_hand() -> None:
    images = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
    weight = torch.tensor([[[[0.0, 2.0], [0.0, -1.0]]]])
    spec = ConvSpec(weight.numpy(), torch.tensor([0.5]).numpy())
    # 2 * right - below right + 0.5
    assert convolve(images, spec, None, 0, 1, plain=False).flatten().tolist() == [-0.5, 0.5]


def test_nan_and_infinity_pass_through() -> None:
    images = torch.ones(1, 1, 1, 8)
    images[0, 0, 0, 2:4] = torch.tensor([math.nan, math.inf])
    spec = ConvSpec(torch.ones(1, 1, 1, 1).numpy(), torch.zeros(1).numpy(), low=0.0)
    for plain in (True, False):
        found = convolve(images, spec, None, 0, 1, plain).flatten()
        assert found[2].isnan()
        assert found[3] == math.inf
        assert found[[0, 1, 4, 5, 6, 7]].tolist() == [1.0] * 6


@settings(max_examples=100, deadline=None)
@given(
    images=st.sampled_from([1, 2, 8, 9, 16, 33]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    height=st.integers(4, 12),
    width=st.integers(4, 25),
    pad=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_max_pool(
    images: int, kernel: tuple[int, int], stride: tuple[int, int], height: int, width: int, pad: int, seed: int
) -> None:
    data = torch.randn(images, 3, height, width, generator=torch.Generator().manual_seed(seed))
    data[0, 0, 1, 1] = math.nan
    padding = (kernel[0] // 2, kernel[1] // 2)
    wanted = F.max_pool2d(data, kernel, stride, padding)
    rows, columns = wanted.shape[2:]
    lanes = lanes_for(images)
    target = Geometry(images, 3, rows, columns, pad, pad, columns + pad, lanes)
    source = Geometry(images, 3, height, width, 1, 1, width + 1, lanes)
    inside, outside = source.buffer(), target.buffer()
    CopyIn("x", tuple(data.shape), 0, source, None, (height, width), 1).bind([inside])({"x": data})
    for place, buffers in (("x", [outside]), (1, [outside, inside])):
        outside.zero_()
        MaxPool(place, source, 0, target, kernel, stride, padding, 2).bind(buffers)({"x": data})
        torch.testing.assert_close(target.view(outside), wanted, rtol=0, atol=0, equal_nan=True)
