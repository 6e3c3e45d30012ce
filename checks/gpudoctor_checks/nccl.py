"""What NCCL's log says."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
