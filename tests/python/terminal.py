# Runs a command on a pseudo-terminal and gives what a user would see there.
import os
import struct
import subprocess

import pytest


def shown_on_terminal(words, columns, stream, **options):
    """(text, exit code): `stream`, "stdout" or "stderr", is a terminal of this many columns. Skips where there is none."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    try:
        master, slave = pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal on this machine: {error}")
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    streams = {"stdout": subprocess.DEVNULL, stream: slave}
    with subprocess.Popen([str(word) for word in words], **streams, **options) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
    os.close(master)
    return shown.decode(), process.returncode
