"""Driver, CUDA level, GPU architecture: the compatibility rules."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
