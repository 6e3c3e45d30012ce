"""What the pod asks for, its limits, probes, environment and engine flags."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
