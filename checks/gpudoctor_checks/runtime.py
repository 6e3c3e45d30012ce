"""Container toolkit, CDI, runtime classes, images: what stands between image and process."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
