"""The scheduler's verdict, placement, quota and kubelet admission."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
