"""Frozen dataclasses as plain JSON values and back, with every type checked on the way back."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_LARGEST = 1 << 62  # sums and differences of two must fit int64


def to_plain(record: object) -> dict[str, Any]:
    """Fields of a dataclass as what JSON can hold; tuples become lists."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"expected a dataclass, found {type(record).__name__}")
    return dataclasses.asdict(record)


def from_plain(kind: type[T], value: object) -> T:
    """Make a dataclass out of what `to_plain` made of one.

    Parameters
    ----------
    kind : type
        Dataclass whose fields are int, str, bool, float, None, unions of them, dataclasses, tuples and dicts.
    value : object
        As JSON gives it back.

    Raises
    ------
    ValueError
        A field is missing, unknown, or of another type.
    """
    made: T = _value(kind, value, kind.__name__)
    return made


def _record(kind: Any, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected fields, found {type(value).__name__}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(map(str, value)) - set(fields))
    needed = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = sorted(needed - set(value))
    if unknown or missing:
        what = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
        raise ValueError(f"{where}: {what}")
    return kind(**{name: _value(hints[name], part, f"{where}.{name}") for name, part in value.items()})


def _value(kind: Any, value: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        inner = [part for part in parts if part is not type(None)]
        return _value(inner[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, found {type(value).__name__}")
        if len(parts) == 2 and parts[1] is Ellipsis:
            return tuple(_value(parts[0], part, where) for part in value)
        if len(value) != len(parts):
            raise ValueError(f"{where}: expected {len(parts)} values, found {len(value)}")
        return tuple(_value(part, each, where) for part, each in zip(parts, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected fields, found {type(value).__name__}")
        return {
            _value(parts[0], key, where): _value(parts[1], part, f"{where}.{key}")
            for key, part in value.items()
        }
    # bool is an int in Python, not here.
    if type(value) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{where}: beyond 62 bits")
    return value
