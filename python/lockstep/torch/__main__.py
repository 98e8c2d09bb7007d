"""The command ``python -m lockstep.torch selftest PROGRAM [ARGUMENT...]``."""

import argparse
import sys

from lockstep.torch import Error, selftest


def main():
    parser = argparse.ArgumentParser(prog="python -m lockstep.torch")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("selftest", help="compare the first steps of a program with "
                                  "several numbers of workers, and name the first difference")
    command.add_argument("--steps", type=int, default=3, help="default: 3")
    command.add_argument("--workers", default="1,2,3", help="default: 1,2,3")
    command.add_argument("program", help="a Python program that uses lockstep.torch")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args()
    try:
        report = selftest(given.program, given.arguments, steps=given.steps,
                          workers=[int(n) for n in given.workers.split(",")])
    except Error as error:
        print(f"selftest: {error}", file=sys.stderr)
        return 2
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(main())
