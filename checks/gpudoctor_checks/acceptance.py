"""nccl-tests and ib_write_bw against known levels."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
