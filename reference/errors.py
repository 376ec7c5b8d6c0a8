"""What a person asked for cannot be done, and nothing in the code is broken."""


class BadInput(Exception):
    """A file, an option or a number that cannot work.

    The message is one line that says what is wrong and what would work. Commands print it and exit with code 2.
    """
