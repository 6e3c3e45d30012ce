"""Asks a kubelet once and prints the answer: `python -m … SOCKET SECONDS`.

The messages are few and stable since 2021, so a table of their fields takes the place of
generated stubs and of the protobuf runtime. Fields that are not in it are passed over, as
protobuf wants it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

LIST = "/v1.PodResourcesLister/List"
_MOST_ANSWER = 16 << 20
"""What the kubelet itself is willing to send."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_SIGN = 1 << 63

Fields = Mapping[int, tuple[str, Any, bool]]
"""Number -> (JSON name, `str`, `int` or the fields of a message, whether it is repeated)."""

_TOPOLOGY: Fields = {1: ("nodes", {1: ("ID", int, False)}, True)}
_DEVICES: Fields = {
    1: ("resourceName", str, False),
    2: ("deviceIds", str, True),
    3: ("topology", _TOPOLOGY, False),
}
_MEMORY: Fields = {
    1: ("memoryType", str, False),
    2: ("size", int, False),
    3: ("topology", _TOPOLOGY, False),
}
_CLAIMED: Fields = {
    1: ("cdiDevices", {1: ("name", str, False)}, True),
    2: ("driverName", str, False),
    3: ("poolName", str, False),
    4: ("deviceName", str, False),
}
_CLAIM: Fields = {
    2: ("claimName", str, False),
    3: ("claimNamespace", str, False),
    4: ("claimResources", _CLAIMED, True),
}
_CONTAINER: Fields = {
    1: ("name", str, False),
    2: ("devices", _DEVICES, True),
    3: ("cpuIds", int, True),
    4: ("memory", _MEMORY, True),
    5: ("dynamicResources", _CLAIM, True),
}
_POD: Fields = {
    1: ("name", str, False),
    2: ("namespace", str, False),
    3: ("containers", _CONTAINER, True),
}
RESPONSE: Fields = {1: ("podResources", _POD, True)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; ValueError if it does not."""
    value = 0
    for length in range(_LONGEST_VARINT):
        if at + length >= len(data):
            break
        byte = data[at + length]
        value |= (byte & 0x7F) << 7 * length
        if not byte & 0x80:
            return value, at + length + 1
    raise ValueError("a number that does not end")


def _parts(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the raw value of each field; ValueError if the message is cut."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = _FIXED_SIZES.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a field that is cut, or of no known form")
        yield key >> 3, data[at : at + size]
        at += size


def _numbers(value: int | bytes) -> Iterator[int]:
    """Yield the int64s of a field: one, or several packed."""
    if isinstance(value, int):
        yield value - 2 * _SIGN if value & _SIGN else value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield from _numbers(number)


def decode(data: bytes, fields: Fields = RESPONSE) -> dict[str, Any]:
    """Return the JSON form of a message; ValueError if it is none."""
    message: dict[str, Any] = {}
    for number, value in _parts(data):
        if number not in fields:
            continue
        name, kind, repeated = fields[number]
        if kind is int:
            found: list[Any] = list(_numbers(value))
        elif isinstance(value, int):
            raise ValueError(f"{name} is a number")
        elif kind is str:
            found = [value.decode("utf-8", "replace")]
        else:
            found = [decode(value, kind)]
        if repeated:
            message.setdefault(name, []).extend(found)
        elif found:
            message[name] = found[-1]
    return message


def ask(socket: str, seconds: float) -> dict[str, Any]:
    """Return what the kubelet behind the socket lists, or the error."""
    try:
        import grpc
    except ImportError:
        return _error("NO_GRPCIO", "grpcio is missing: pip install 'gpudoctor[agent]'")
    options = (
        ("grpc.max_receive_message_length", _MOST_ANSWER),
        ("grpc.default_authority", "localhost"),  # else it is the socket's path, percent-encoded
    )
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        try:
            # Without serializers bytes go out and come in as they are.
            answer = channel.unary_unary(LIST)(b"", timeout=seconds)
        except grpc.RpcError as error:
            return _error(error.code().name, error.details() or "")
    try:
        return decode(answer)
    except ValueError as error:
        return _error("DATA_LOSS", str(error))


def _error(code: str, details: str) -> dict[str, Any]:
    return {"error": {"code": code, "details": details}}


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], float(sys.argv[2]))))
