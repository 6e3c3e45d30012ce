"""Kueue, Volcano and gangs: what holds a pod before the scheduler sees it."""

from gpudoctor.checking import CheckSet

CHECKS = CheckSet()
