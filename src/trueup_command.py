"""Where ``trueup`` begins: outside of the package, for what has to be done before PyTorch is imported.

Importing it takes a second or two, and may be interrupted. And its threads share each operation and wait for each other
at its end, busily: where another program wants one of the cores, that can make a command take twenty times as long. A
short wait and then sleep costs nothing on a free machine.
"""

import os
import signal


def main() -> None:
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background ignores it
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is begun yet: an end without a word
    from trueup.cli import main as command

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()
