"""How a command ends that was understood: exit codes, and the error that is one line and exit code 1."""

from __future__ import annotations

import errno

INTERRUPTED = 130
BAD_INPUT = 2
# What a system says that refuses a file, and no bug of ours makes it say.
REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EMFILE,
    errno.ENFILE,
}


class CommandError(Exception):
    """The command was understood but has nothing to show: one line, exit code 1."""
