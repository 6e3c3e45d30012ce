"""Where the program starts: `gpudoctor`, and `python -m gpudoctor`."""

import gc
import sys

_OBJECTS = 20_000
"""So many new objects make a search for garbage: imports make as many, and none of it."""


def start() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends without a traceback."""
    gc.set_threshold(_OBJECTS)
    try:
        from gpudoctor.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
