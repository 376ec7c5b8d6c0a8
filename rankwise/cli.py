"""The front desk: the table of all commands, and how their failures are said.

A command is a function of a module in `rankwise/commands`, named like the command, listed in that module's `COMMANDS`;
in its `HANDS_ON`, too, if options that it does not know are for another program.
It returns None or an exit code. Such a module imports what is heavy inside of its functions, so that
`rankwise --help` answers at once.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

# In the order of `rankwise --help`.
MODULES = (
    "init",
    "demo",
    "lessons",
    "puzzles",
    "check",
    "hint",
    "grade",
    "assignment",
    "capstone",
    "train",
    "plan",
    "trace",
    "frameworks",
    "bench",
    "doctor",
    "update",
)
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """The console script `rankwise`. What a terminal's encoding lacks is a question mark there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the process that started us
            stream.reconfigure(errors="replace")
    try:
        code = run(sys.argv[1:])
        print(end="", flush=True)
    except OSError:
        code = _unwritable()
        if code is None:
            raise
    sys.exit(code)


def _unwritable() -> int | None:
    """The exit code where stdout can't be written, said on stderr; None where it can: one more line end tells."""
    try:
        print(flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if isinstance(error, BrokenPipeError):  # a reader that closes a pipe early, as `head` does, knows
            return FAILED
        return fail(f"stdout can't be written: {error.strerror}", BAD_INPUT)
    return None


def run(arguments: list[str]) -> int:
    """Run one command line.

    Returns:
        The exit code: 0, 1 for a failure on a rank, 2 for bad input, 130 after Ctrl-C, 143 for a training that was told
        to stop and has saved.
    """
    from reference.errors import BadInput
    from reference.resilience.preemption import PREEMPTED, Preempted

    try:
        code = build()(arguments, prog_name="rankwise", standalone_mode=False)
    except typer.TyperException as error:
        said = error.format_message()
        unknown = said.startswith("No such command") and "Did you mean" not in said
        return fail(f"{said} `rankwise --help` lists them." if unknown else said, BAD_INPUT)
    except BadInput as error:
        return fail(str(error), BAD_INPUT)
    except Preempted as reason:
        return fail(str(reason), PREEMPTED)
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
    names_of_help = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=names_of_help)
    app.callback(invoke_without_command=True)(rankwise)
    for name in MODULES:
        module = import_module(f"rankwise.commands.{name}")
        for command in module.COMMANDS:
            hands_on = command in getattr(module, "HANDS_ON", ())
            app.command(context_settings={"ignore_unknown_options": hands_on})(command)
    return app


def rankwise(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Learn distributed training by building every piece of it, in real processes on this machine.

    Begin with `rankwise lab`, or with `rankwise puzzles` and an editor. `rankwise COMMAND --help` explains a command.
    """
    if show_version:
        typer.echo(f"rankwise {version('rankwise')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def fail(message: str, code: int) -> int:
    """Say what went wrong, on stderr.

    Returns:
        `code`.
    """
    print(f"rankwise: {message}", file=sys.stderr, flush=True)
    return code
