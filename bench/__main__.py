"""`python -m bench [NAME…]`: run the benchmarks, all or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench

NAMES = [module.name for module in pkgutil.iter_modules(bench.__path__) if module.name[0] != "_"]

for name in sys.argv[1:] or NAMES:
    print(f"== {name}", flush=True)
    importlib.import_module(f"bench.{name}").run()
