"""A kubelet's pod-resources service: a real gRPC server on a unix socket.

Its messages are made with the protobuf runtime from the published definition, so that our own
reader is tested against something else than itself.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

FOLDER = "var/lib/kubelet/pod-resources"
SERVICE = "v1.PodResourcesLister"

# k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; "*" is repeated.
DEFINITION = {
    "NUMANode": {1: ("ID", "int64")},
    "TopologyInfo": {1: ("nodes", "NUMANode*")},
    "ContainerDevices": {
        1: ("resource_name", "string"),
        2: ("device_ids", "string*"),
        3: ("topology", "TopologyInfo"),
    },
    "ContainerMemory": {
        1: ("memory_type", "string"),
        2: ("size", "uint64"),
        3: ("topology", "TopologyInfo"),
    },
    "CDIDevice": {1: ("name", "string")},
    "ClaimResource": {
        1: ("cdi_devices", "CDIDevice*"),
        2: ("driver_name", "string"),
        3: ("pool_name", "string"),
        4: ("device_name", "string"),
        5: ("share_id", "string"),
    },
    "DynamicResource": {
        1: ("class_name", "string"),
        2: ("claim_name", "string"),
        3: ("claim_namespace", "string"),
        4: ("claim_resources", "ClaimResource*"),
    },
    "ContainerResources": {
        1: ("name", "string"),
        2: ("devices", "ContainerDevices*"),
        3: ("cpu_ids", "int64*"),
        4: ("memory", "ContainerMemory*"),
        5: ("dynamic_resources", "DynamicResource*"),
    },
    "PodResources": {
        1: ("name", "string"),
        2: ("namespace", "string"),
        3: ("containers", "ContainerResources*"),
        4: ("cpu_ids", "int64*"),
        5: ("memory", "ContainerMemory*"),
    },
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources*")},
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "string": _FIELD.TYPE_STRING,
}


def _message_type(name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for message, fields in DEFINITION.items():
        described = file.message_type.add(name=message)
        for number, (field, kind) in fields.items():
            repeated = kind.endswith("*")
            base = kind.rstrip("*")
            described.field.add(
                name=field,
                number=number,
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
                type=_SCALARS.get(base, _FIELD.TYPE_MESSAGE),
                type_name=None if base in _SCALARS else f".v1.{base}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))


def encode(response: dict[str, Any]) -> bytes:
    """Return the wire form of a response in protobuf's JSON form."""
    message = json_format.ParseDict(response, _message_type("ListPodResourcesResponse")())
    encoded: bytes = message.SerializeToString()
    return encoded


def pod(
    name: str,
    *,
    namespace: str = "ml",
    container: str = "main",
    cpus: tuple[int, ...] = (),
    **devices: list[str],
) -> dict[str, Any]:
    """A pod of one container; `gpu=[…]` are devices of `nvidia.com/gpu`."""
    given = [
        {
            "resourceName": f"nvidia.com/{resource}",
            "deviceIds": ids,
            "topology": {"nodes": [{"ID": 1}]},
        }
        for resource, ids in devices.items()
    ]
    return {
        "name": name,
        "namespace": namespace,
        "containers": [{"name": container, "devices": given, "cpuIds": list(cpus)}],
    }


@contextlib.contextmanager
def serving(root: Path, list_pods: Callable[[Any], bytes]) -> Iterator[None]:
    """Serve `List` below a host's root; `list_pods(context)` returns the response's wire form."""
    folder = root / FOLDER
    folder.mkdir(parents=True)

    def handle(request: bytes, context: Any) -> bytes:
        return list_pods(context)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    methods = {"List": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    assert server.add_insecure_port(f"unix:{folder}/kubelet.sock")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def frozen(root: Path) -> Iterator[None]:
    """Be a kubelet that stands still: the kernel takes its connections, and nobody answers."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "kubelet.sock"))
        listening.listen()
        yield
