from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcache.backends.bind import InputCheck, Spec, constants, find, own_constants
from graphcache.errors import ConfigError, LoadError

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(shapes, st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_a_spec_fits_what_it_was_made_of(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    spec = Spec.of(tensor)
    assert spec.fits(tensor)
    assert Spec.read(spec.as_json()) == spec


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 6, dtype=torch.float64),
        torch.zeros(4, 7),
        torch.zeros(6, 4),
        torch.zeros(6, 4).T,
        torch.zeros(4, 12)[:, ::2],
        torch.zeros(4, 6, 1),
    ],
)
def test_another_dtype_shape_or_stride_does_not_fit(other: torch.Tensor) -> None:
    assert not Spec.of(torch.zeros(4, 6)).fits(other)


def test_what_is_dynamic_fits_any_size() -> None:
    spec = Spec("torch.float32", (None, 6), (6, 1))
    assert spec.fits(torch.zeros(4, 6))
    assert spec.fits(torch.zeros(400, 6))
    assert not spec.fits(torch.zeros(4, 5))


def test_the_stride_of_one_element_means_nothing() -> None:
    assert Spec.of(torch.zeros(1, 6)).fits(torch.zeros(4, 6)[:1].as_strided((1, 6), (99, 1)))


def test_tensors_are_found_by_dotted_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert find(model, "0.weight") is model[0].weight
    assert find(model, "0.gone") is None
    assert find(model, "0.in_features") is None


def test_everything_that_differs_is_named() -> None:
    model = torch.nn.Linear(3, 2)
    specs = {
        "weight": Spec.of(torch.zeros(2, 4)),
        "bias": Spec.of(torch.zeros(2, dtype=torch.bfloat16)),
        "scale": Spec.of(torch.zeros(1)),
    }
    with pytest.raises(
        LoadError, match=r"(?s)weight.*\[2, 4\].*\[2, 3\].*bias.*bfloat16.*float32.*scale.*none"
    ):
        constants(specs, specs, model, {})
    with pytest.raises(LoadError, match="does not say"):
        constants(["weight"], {}, model, {})


def test_own_constants_come_from_the_graph() -> None:
    first, second = torch.arange(3.0), torch.tensor([], dtype=torch.int64)
    specs = {"lifted_tensor_1": Spec.of(second), "lifted_tensor_0": Spec.of(first), "w": Spec.of(first)}
    own = own_constants(specs, first.numpy().tobytes())
    assert own.keys() == {"lifted_tensor_0", "lifted_tensor_1"}
    assert torch.equal(own["lifted_tensor_0"], first)
    assert (
        constants(["lifted_tensor_0"], specs, torch.nn.Module(), own)["lifted_tensor_0"]
        is own["lifted_tensor_0"]
    )


@pytest.mark.parametrize("values", [b"", b"\0" * 11, b"\0" * 13])
def test_too_few_or_too_many_bytes_are_refused(values: bytes) -> None:
    with pytest.raises(LoadError):
        own_constants({"lifted_tensor_0": Spec.of(torch.zeros(3))}, values)


@pytest.mark.parametrize("dtype", ["torch.nonsense", "torch.nn", "os"])
def test_a_dtype_that_torch_does_not_have_is_refused(dtype: str) -> None:
    with pytest.raises(LoadError, match=dtype):
        InputCheck([Spec(dtype, (1,), (1,))])


def test_inputs_are_checked_and_the_wrong_one_is_named() -> None:
    check = InputCheck([Spec.of(torch.zeros(2)), Spec("torch.int64", (None, 3), (3, 1))])
    for rows in (5, 5, 7, 5):
        check([torch.zeros(2), torch.zeros(rows, 3, dtype=torch.int64)])
    with pytest.raises(ConfigError, match=r"input 1 .*float32.*int64"):
        check([torch.zeros(2), torch.zeros(5, 3)])
    with pytest.raises(ConfigError, match=r"1 .*2 tensors"):
        check([torch.zeros(2)])
