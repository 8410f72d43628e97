"""How values cross between a program and its tests: as tagged JSON, never as pickles or code.

What arrives is a new object of a built-in type, whatever the sender's class overrides. An object that is built
from anything else arrives as ``Opaque``: true or false, and nothing more. Standard library only; imported inside
the sandbox.
"""

import collections
import collections.abc
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

_LENGTH = struct.Struct("<I")
_MESSAGE_BYTES = 8 << 20
_ITEMS = 10_000  # of an iterator
_SAFE_INT = 1 << 53


class Untransferable(Exception):
    """A value that cannot cross between the two processes."""


class Opaque:
    """Stands for an object that cannot cross; it can be asked whether it is true and nothing else."""

    __slots__ = ("kind", "truth")

    def __init__(self, kind: str, truth: bool) -> None:
        self.kind, self.truth = kind, truth

    def __bool__(self) -> bool:
        return self.truth

    def __getattr__(self, name: str) -> Any:
        raise self.refusal(name)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # isinstance asks for it
        raise self.refusal("its class")

    def refusal(self, wanted: str) -> Untransferable:
        """The fault of asking for more, kept because tests may catch it."""
        fault = Untransferable(f"an object of type {self.kind}, of which the tests want {wanted}")
        refusals.append(fault)
        return fault


refusals: list[Untransferable] = []


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(self: Opaque, *_: Any) -> Any:
        raise self.refusal(f"__{name}__")

    return refuse


_REFUSED = """
eq ne lt le gt ge len iter next getitem setitem contains call add radd sub rsub mul rmul truediv rtruediv floordiv
rfloordiv mod rmod pow rpow neg pos abs int float index complex round str repr format and rand or ror xor rxor
enter exit hash
"""
for _name in _REFUSED.split():
    setattr(Opaque, f"__{_name}__", _refuse(_name))


def encode(value: Any) -> Any:
    """A value as tagged JSON data.

    An object of a class of its own crosses as its name and truth (see ``Opaque``).

    Raises:
        Untransferable: An iterator is too long.
    """
    if value is None or isinstance(value, bool):
        return value
    kind: Any = type(cast(object, value))
    if kind is str:
        return value
    if kind is int:
        return value if -_SAFE_INT < value < _SAFE_INT else {"i": hex(value)}
    if kind is float:
        return {"f": value.hex()}
    if kind is list:
        return [encode(v) for v in value]
    for base, tag, parts in _SHAPES:
        if isinstance(value, base):
            return {tag: parts(value)}
    if hasattr(kind, "__next__"):
        items: list[Any] = []
        for item in value:
            if len(items) == _ITEMS:
                raise Untransferable(f"an iterator with more than {_ITEMS} items")
            items.append(encode(item))
        return {"it": items}
    return {"o": [kind.__name__, bool(value)]}


def _pairs(value: Mapping[Any, Any]) -> list[Any]:
    return [[encode(k), encode(v)] for k, v in dict.items(value)]  # type: ignore[arg-type]


def _items(base: Any) -> Callable[[Any], list[Any]]:
    return lambda value: [encode(v) for v in base.__iter__(value)]


_SHAPES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    # Subclasses cross as their base: methods that a program overrides do not.
    (str, "u", lambda v: str.__str__(v)),
    (int, "i", lambda v: hex(int.__index__(v))),
    (float, "f", lambda v: float.hex(v)),
    (tuple, "t", _items(tuple)),
    (list, "l", _items(list)),
    (dict, "d", _pairs),
    (frozenset, "z", _items(frozenset)),
    (set, "s", _items(set)),
    (complex, "c", lambda v: [float.hex(v.real), float.hex(v.imag)]),
    (bytes, "b", lambda v: bytes.hex(v)),
    (bytearray, "ba", lambda v: bytearray.hex(v)),
    (range, "r", lambda v: [hex(v.start), hex(v.stop), hex(v.step)]),
    (collections.deque, "dq", _items(collections.deque)),
    (Fraction, "q", lambda v: [hex(v.numerator), hex(v.denominator)]),
    (Decimal, "m", lambda v: Decimal.__str__(v)),
    (collections.abc.MappingView, "it", lambda v: [encode(i) for i in v]),
)


def decode(data: Any) -> Any:
    """The value of tagged JSON data. Raises ValueError, TypeError, KeyError and the like for other data."""
    if isinstance(data, list):
        return _all(cast(list[Any], data))
    if not isinstance(data, dict):
        return data
    ((tag, body),) = cast(dict[str, Any], data).items()
    return _DECODERS[tag](body)


def _all(body: Iterable[Any]) -> list[Any]:
    return [decode(v) for v in body]


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "u": str,
    "i": lambda b: int(b, 16),
    "f": float.fromhex,
    "t": lambda b: tuple(_all(b)),
    "l": _all,
    "d": lambda b: {decode(k): decode(v) for k, v in b},
    "z": lambda b: frozenset(_all(b)),
    "s": lambda b: set(_all(b)),
    "c": lambda b: complex(float.fromhex(b[0]), float.fromhex(b[1])),
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "r": lambda b: range(int(b[0], 16), int(b[1], 16), int(b[2], 16)),
    "dq": lambda b: collections.deque(_all(b)),
    "q": lambda b: Fraction(int(b[0], 16), int(b[1], 16)),
    "m": Decimal,
    "it": lambda b: iter(_all(b)),
    "o": lambda b: Opaque(str(b[0]), bool(b[1])),
}


def send(fd: int, message: Mapping[str, Any]) -> None:
    """Write one message. Raises Untransferable where it is too long."""
    body = json.dumps(message).encode("ascii")
    if len(body) > _MESSAGE_BYTES:
        raise Untransferable(f"a value of {len(body)} bytes")
    write_all(fd, _LENGTH.pack(len(body)) + body)


def receive(fd: int) -> Any:
    """Read one message. Raises EOFError and ValueError."""
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if length > _MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_read_exactly(fd, length))


def write_all(fd: int, data: bytes) -> None:  # send(2) and recv(2) are not among the permitted calls
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other process is gone")
        parts += part
    return bytes(parts)
