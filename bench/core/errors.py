"""The one family of errors that a person can cause or cure."""


class AttnbenchError(Exception):
    """A mistake or a missing part; the message says what was expected, what was found and what to do.

    The command line prints the message alone and exits with `exit_code`.
    """

    exit_code = 2


class SelectionError(AttnbenchError):
    """A name, parameter or value that nothing answers to."""


class DataError(AttnbenchError):
    """Data that is missing, incomplete or not what it claims to be."""

    exit_code = 3


class StoreError(AttnbenchError):
    """A results folder that cannot be read or written."""

    exit_code = 4


class DeviceError(AttnbenchError):
    """A device that this machine does not have."""

    exit_code = 5


class Unsupported(AttnbenchError):
    """A variant that declares it cannot do what is asked; the reason is the message."""

    exit_code = 6
