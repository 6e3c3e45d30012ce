"""The rules, one module a layer: pure functions from facts to drafts of findings.

Each module has a `CHECKS` set that an entry point of the group `gpudoctor.checks` names.
"""
