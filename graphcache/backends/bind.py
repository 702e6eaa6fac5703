"""The tensors that a compiled graph is bound to, and whether they are exactly what it was compiled for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphcache.errors import ConfigError, LoadError

OWN_PREFIX = "lifted_tensor_"
"""How the exporter calls literal tensors of the model's code; their values travel with the graph."""

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's dtype, sizes and strides; None where a size, or a stride, is dynamic."""

    dtype: str
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]

    @classmethod
    def of(cls, tensor: Any) -> Spec:
        """Describe a tensor, real or symbolic."""
        return cls(str(tensor.dtype), _static(tensor.shape), _static(tensor.stride()))

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Spec:
        """Read what `as_json` returned."""
        dtype, shape, stride = fields
        return cls(str(dtype), tuple(shape), tuple(stride))

    def as_json(self) -> list[Any]:
        """Return it as plain JSON."""
        return [self.dtype, list(self.shape), list(self.stride)]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} strides {list(self.stride)}"

    def fits(self, tensor: Any) -> bool:
        """Say whether a tensor is of this kind; the stride of a dimension of one element means nothing."""
        if str(tensor.dtype) != self.dtype or len(tensor.shape) != len(self.shape):
            return False
        sizes = zip(self.shape, self.stride, tensor.shape, tensor.stride(), strict=True)
        return all(
            (size is None or size == there) and (stride is None or stride == step or there == 1)
            for size, stride, there, step in sizes
        )


def find(module: Any, name: str) -> Any:
    """Return the tensor that a module holds under a dotted name, or None."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.Tensor) else None


def constants(
    names: Iterable[str], specs: Mapping[str, Spec], module: Any, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tensor for each dotted name: the graph's own, or the live model's.

    Raises:
        LoadError: one is missing, or is not of the dtype, shape and strides that were compiled in; the
            message says which, and how they differ.
    """
    bound: dict[str, Any] = {}
    wrong: list[str] = []
    for name in names:
        tensor = own[name] if name in own else find(module, name)
        if name not in specs:
            wrong.append(f"{name}: the graph does not say what it must be")
        elif tensor is None:
            wrong.append(f"{name}: compiled for {specs[name]}, and the model has none")
        elif tensor.device.type != "cpu" or not specs[name].fits(tensor):
            wrong.append(f"{name}: compiled for {specs[name]}, and the model has {Spec.of(tensor)}")
        else:
            bound[name] = tensor
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise LoadError(f"the model's weights are not those of the graph: {'; '.join(wrong[:_SHOWN])}{more}")
    return bound


def own_constants(specs: Mapping[str, Spec], values: bytes | memoryview) -> dict[str, Any]:
    """Read the values of the graph's own constants.

    Raises:
        LoadError: there are more or fewer bytes than they need.
    """
    own: dict[str, Any] = {}
    at = 0
    for name in sorted(name for name in specs if name.startswith(OWN_PREFIX)):
        tensor = torch.empty(specs[name].shape, dtype=_dtype(specs[name].dtype))
        flat = tensor.view(-1).view(torch.uint8)
        if len(values) - at < flat.numel():
            raise LoadError(f"{name}: {flat.numel()} bytes are needed, {len(values) - at} are left")
        if flat.numel():
            flat.copy_(torch.frombuffer(bytearray(values[at : at + flat.numel()]), dtype=torch.uint8))
        own[name] = tensor
        at += flat.numel()
    if at != len(values):
        raise LoadError(f"{len(values) - at} bytes of constants belong to no name")
    return own


class InputCheck:
    """Makes sure that a graph is called with what it was compiled for: compiled code looks at nothing.

    Raises:
        LoadError: a dtype that this torch does not have.
    """

    __slots__ = ("_expected",)

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._expected: list[tuple[torch.dtype, Any, Any, Spec]] = [
            (_dtype(spec.dtype), spec.shape, spec.stride, spec) for spec in specs
        ]

    def __call__(self, inputs: Sequence[Any]) -> None:
        """Check one call's inputs, in well under a microsecond each.

        Raises:
            ConfigError: another number of inputs, or one of another dtype, shape or strides.
        """
        if len(inputs) != len(self._expected):
            raise ConfigError.of("inputs of a graph", len(inputs), f"{len(self._expected)} tensors")
        for index, (dtype, shape, stride, spec) in enumerate(self._expected):
            tensor = inputs[index]
            if tensor.dtype is dtype and tensor.shape == shape and tensor.stride() == stride:
                continue
            if not spec.fits(tensor):
                raise ConfigError.of(f"input {index} of a graph", str(Spec.of(tensor)), str(spec))
            # A dynamic size seldom changes: the next call is compared with this one first.
            self._expected[index] = (dtype, tensor.shape, tensor.stride(), spec)


def _static(sizes: Iterable[Any]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in sizes)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise LoadError(f"{name!r} is no dtype of this torch")
    return dtype
