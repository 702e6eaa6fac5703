"""What a backend needs to know of a model: the module to compile for a key, and inputs of its shapes."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from graphcache.key import GraphKey


class Program(Protocol):
    """One model in this process, as its runner hands it to a backend.

    The runner owns the convention of inputs: whatever ``inputs`` returns for a key is what it passes to
    that key's graph at run time, by position, with the same shapes, dtypes and strides.
    """

    def module(self, key: GraphKey) -> Any:
        """Return the ``torch.nn.Module`` whose ``forward`` is the graph of this key's kind and mode.

        Its parameters and buffers are the live model's own tensors; compiled graphs are bound to them.
        """
        ...

    def inputs(self, key: GraphKey) -> tuple[Any, ...]:
        """Return dummy input tensors of this key's exact shapes, on the model's device."""
        ...

    def dynamic_shapes(self, key: GraphKey) -> Any:
        """Return what stays dynamic in the compiled graph, as ``torch.export`` takes it, or None.

        For instance the number of KV blocks, which follows from free memory and is no fact of the key.
        """
        ...

    def facts(self) -> list[tuple[str, str]]:
        """Return the labelled facts of the model: configuration, source, dtypes, task."""
        ...


class Template(NamedTuple):
    """One export that serves several keys: a name that they share, and the dimensions that it leaves open.

    ``dynamic_shapes`` is as ``torch.export`` takes it, for the inputs of any of these keys.
    """

    name: str
    dynamic_shapes: Any


@runtime_checkable
class Templated(Protocol):
    """A program whose keys share exports: a model is traced once a template, not once a key."""

    def template(self, key: GraphKey) -> Template:
        """Return the template from which this key's graph is made, by fixing its inputs' shapes."""
        ...
