"""What the checks of client libraries have in common: options, a list of named checks, one line per result."""

import argparse
import sys
import traceback

CHECKS = []


def check(function):
    """Adds a function to the list. Its name says what holds."""
    CHECKS.append(function)
    return function


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True, help="root of the server, without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", required=True, help="a key without limits")
    parser.add_argument("--limited-key", default="", help="a key that may ask once a minute")
    parser.add_argument("--engine", choices=["script", "model"], required=True)
    return parser.parse_args()


def expect(holds, *seen):
    if not holds:
        raise AssertionError(" ".join(repr(part) for part in seen) or "it does not hold")


def raised(kind, call):
    """The error of that class that a call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def run(*arguments):
    """Runs every check; the exit status says whether all held."""
    failed = 0
    for function in CHECKS:
        name = function.__name__
        try:
            function(*arguments)
            print(f"ok {name}")
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}")
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks hold")
    sys.exit(1 if failed else 0)
