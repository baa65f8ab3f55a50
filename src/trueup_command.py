"""Where ``trueup`` begins: outside of the package, as importing that takes a second or two and may be interrupted."""

import signal


def main() -> None:
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background ignores it
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is begun yet: an end without a word
    from trueup.cli import main as command

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()
