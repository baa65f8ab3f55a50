"""The command line: one thin function a command. Tables for people, ``--json`` for programs, errors to stderr."""

from trueup.cli import measure, report, study  # noqa: F401  (each adds its commands)
from trueup.cli.app import app

__all__ = ["app", "main"]

ORDER = ("example", "audit", "calibrate", "apply", "compare", "report", "export", "train", "study", "curvature")
"""As a newcomer meets them; what is not named comes last."""

app.registered_commands.sort(
    key=lambda command: (
        ORDER.index(name) if (name := getattr(command.callback, "__name__", "")) in ORDER else len(ORDER)
    )
)


def main() -> None:
    app()
