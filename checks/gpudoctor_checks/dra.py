"""Dynamic resource allocation: claims, slices, drivers, compute domains."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
