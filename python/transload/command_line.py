# How a command line of the package ends: every error is one line on standard error and an exit code.
from __future__ import annotations

import sys
from typing import Callable

from transload.error import Error


def exit_code_of(action: Callable[[], None]) -> int:
    """Runs `action`; 0, or the exit code of the error it raised."""
    try:
        action()
        return 0
    except Error as error:
        if not error.said:
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        return 5
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 5
