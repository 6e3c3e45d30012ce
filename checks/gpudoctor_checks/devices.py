"""Device plugin, GPU operator and what a node advertises."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
