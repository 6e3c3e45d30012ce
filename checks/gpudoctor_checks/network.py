"""RDMA devices, ports, GIDs and GPUDirect RDMA."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
