"""PCIe, NVLink and NUMA: who is near to whom."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
