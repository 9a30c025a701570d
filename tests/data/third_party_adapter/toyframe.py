"""A framework as small as one can be: a network applies named functions one after the other."""

from __future__ import annotations

from typing import Any, Callable

#: Called for every network of the process: (network, name, function, input, output).
observers: list[Callable[..., Any]] = []


class Network:
    def __init__(self, **layers: Callable[[Any], Any]) -> None:
        self.layers = layers
        #: Called for this network, like the observers of the process.
        self.observers: list[Callable[..., Any]] = []

    def __call__(self, value: Any) -> Any:
        for name, function in self.layers.items():
            result = function(value)
            for observer in (*self.observers, *observers):
                observer(self, name, function, value, result)
            value = result
        return value
