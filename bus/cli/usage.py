"""Wrong use of a command, told in one line."""


class UsageError(Exception):
    """The command was called wrongly; the message says how and what to do. Exit code 2."""
