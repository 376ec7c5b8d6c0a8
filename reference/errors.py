"""What a person asked for cannot be done, and nothing in the code is broken."""

from pathlib import Path


class BadInput(Exception):
    """A file, an option or a number that cannot work.

    The message is one line that says what is wrong and what would work. Commands print it and exit with code 2.
    """


def require_sizes(**sizes: int) -> None:
    """See that there is at least one of everything.

    Args:
        sizes: by name.

    Raises:
        BadInput: if there is not.
    """
    for name, size in sizes.items():
        if size < 1:
            raise BadInput(f"{name} must be at least 1, not {size}")


def require_other_file(option: str, written: Path | None, read: Path | None) -> None:
    """See that a file to write is not one that is read: it would be lost.

    Args:
        option: by which the file to write was named, such as "--log".
        written, read: None where there is none.

    Raises:
        BadInput: if they are one file.
    """
    if written and read and written.resolve() == read.resolve():
        raise BadInput(f"{option} would overwrite {read}, which is read: name another file")
