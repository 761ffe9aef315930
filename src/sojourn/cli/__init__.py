"""The command line, by theme. It prints, asks and exits; all work is done by the rooms above it."""

import signal
import sys

from sojourn.cli import choosing, deployment, runs
from sojourn.cli.console import STOPPED, WRONG, app

__all__ = ["app", "choosing", "deployment", "main", "runs"]

# Help lists the commands by theme, not in the order in which modules are imported.
_THEMES = [home.__name__ for home in (runs, deployment, choosing)]
app.registered_commands.sort(key=lambda command: _THEMES.index(command.callback.__module__))


def main() -> None:
    """Ends with the code that is true, and at once: work that was called off is not waited for."""
    from sojourn.core.threads import end_process

    try:
        _obey()
    except SystemExit as end:
        end_process(end.code if isinstance(end.code, int) else 0)
        raise


def _obey() -> None:
    """Errors a user can mend become one sentence and exit code 2."""
    from sojourn.core.errors import SojournError

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also while nothing is running yet
    try:
        app()
    except SojournError as error:
        print(f"sojourn: {error}", file=sys.stderr)
        sys.exit(WRONG)
    except KeyboardInterrupt:
        print("sojourn: stopped", file=sys.stderr)
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.exit(WRONG)
    except OSError as error:  # a disk that is full, a path too long, a directory that may not be entered
        print(f"sojourn: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        sys.exit(WRONG)
