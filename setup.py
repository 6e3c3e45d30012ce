"""Adds to pyproject.toml the part that is compiled, and is left out where it cannot be built.

With GPUDOCTOR_NO_EXTENSIONS=1 it is left out at any rate, and the wheel fits every machine; and in
a Python without the GIL, which has no stable ABI that it could be built for.
"""

import os
import sysconfig

from setuptools import Extension, setup

_SIEVE = Extension(
    "gpudoctor.facts.nccl._sieve",
    ["nodeagent/gpudoctor/facts/nccl/_sieve.c"],
    extra_compile_args=["-std=c11"],
    py_limited_api=True,
    optional=True,
)

if os.environ.get("GPUDOCTOR_NO_EXTENSIONS") == "1" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup()
else:
    setup(ext_modules=[_SIEVE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
