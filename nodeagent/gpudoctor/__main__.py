"""Where the program starts: `gpudoctor`, and `python -m gpudoctor`."""

import sys


def start() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends without a traceback."""
    try:
        from gpudoctor.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
