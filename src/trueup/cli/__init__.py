"""The command line: one thin function a command. Tables for people, ``--json`` for programs, errors to stderr."""

from trueup.cli import measure, report, study  # noqa: F401  (each adds its commands)
from trueup.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    app()
