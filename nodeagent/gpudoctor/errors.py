"""The one exception that ends a command: a message for the person, in one line."""


class InputError(Exception):
    """Input that cannot be used: what is wrong, where, and what to do next (exit status 2)."""
