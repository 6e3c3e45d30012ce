"""GPUs, PCIe devices and the kernel log."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
