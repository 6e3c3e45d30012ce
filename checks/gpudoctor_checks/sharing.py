"""MIG, time-slicing, MPS, HAMi and Volcano vGPU."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
