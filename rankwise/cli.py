"""The front desk: the table of all commands, and how their failures are said.

A command is a function of a module in `rankwise/commands`, named like the command, listed in that module's `COMMANDS`.
It returns None or an exit code. Such a module imports what is heavy inside of its functions, so that
`rankwise --help` answers at once.
"""

import sys
from importlib import import_module

import typer

# In the order of `rankwise --help`.
MODULES = (
    "demo",
    "lessons",
    "puzzles",
    "train",
    "trace",
    "bench",
    "doctor",
    "update",
)
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """The console script `rankwise`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line.

    Returns:
        The exit code: 0, 1 for a failure on a rank, 2 for bad input, 130 after Ctrl-C.
    """
    from reference.errors import BadInput

    try:
        code = build()(arguments, standalone_mode=False)
    except typer.TyperException as error:
        return fail(error.format_message(), BAD_INPUT)
    except BadInput as error:
        return fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        from reference.cluster import ClusterError, RankError

        if not isinstance(error, (ClusterError, RankError)):
            raise
        return fail(str(error), FAILED)
    if code == INTERRUPTED:
        return fail("interrupted; nothing is left running", INTERRUPTED)
    return code or 0


def build() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(rankwise)
    for module in MODULES:
        for command in import_module(f"rankwise.commands.{module}").COMMANDS:
            app.command()(command)
    return app


def rankwise(context: typer.Context) -> None:
    """Learn distributed training by building every piece of it, in real processes on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def fail(message: str, code: int) -> int:
    """Say what went wrong, on stderr.

    Returns:
        `code`.
    """
    print(f"rankwise: {message}", file=sys.stderr, flush=True)
    return code
