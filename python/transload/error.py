# The errors of the package; `exit_code` is what the command line ends with, `said` whether the user has read it already.


class Error(RuntimeError):
    """A message is one line: lower case, `what: got x, expected y`, naming the file or tensor."""

    exit_code = 1
    said = False


class ContractError(Error):
    """contract.json, or a file it names, is malformed or inconsistent."""


class CacheError(Error):
    """A step's position or outputs break the contract; no buffer was changed."""


class UsageError(Error):
    """The caller asked for something this bundle does not offer."""

    exit_code = 2


class UnsupportedError(Error):
    """Well-formed, but not supported."""

    exit_code = 4
