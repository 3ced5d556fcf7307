"""Functions for a child process that it does not survive, in a module that takes no time to import."""


def work(_: bytes) -> bytes:
    """Take processor time without end."""
    while True:
        pass


def abort(_: bytes) -> bytes:
    """End the process as a failed assertion of a library does."""
    import os

    os.abort()


def sleep(_: bytes) -> bytes:
    """Take a minute, and no processor time."""
    import time

    time.sleep(60)
    return b""
