"""Say whether a port is free; print curl lines once the service on it is ready. Standard library only."""

import argparse
import os
import socket
import sys
import time
import urllib.error
import urllib.request

PASSAGE = "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics."
EXAMPLES = (
    ("classify", '{"text": "A warm, funny film that I would gladly see again."}'),
    ("ner", '{"text": "Angela Merkel met engineers from Siemens in Munich."}'),
    (
        "similarity",
        '{"text": "How do I reset my password?", "candidates": ["I forgot my login", "Opening hours"]}',
    ),
    ("qa", f'{{"question": "Where was Marie Curie born?", "context": "{PASSAGE}"}}'),
)
SLOW_AFTER_S = 2.0


def main() -> int:
    """Run the subcommand `check` or `ready`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("check", "ready"))
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--pid", type=int, default=0, help="stop waiting when this process has ended")
    args = parser.parse_args()
    if args.command == "check":
        return check_port(args.host, args.port)
    return announce(args.host, args.port, args.pid)


def check_port(host: str, port: int) -> int:
    """Return 0 where the port can be bound, else 1 after saying what to do."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        print(f"error: cannot listen on {host} port {port}: {error}", file=sys.stderr)
        print(f"  next: stop what uses it, or take another: make serve PORT={port + 1}", file=sys.stderr)
        return 1
    return 0


def announce(host: str, port: int, pid: int) -> int:
    """Wait until the service is ready, then print four curl lines; give up when the process has ended."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    url = f"http://{reach}:{port}"
    started, told = time.monotonic(), False
    while not is_ready(url):
        if not is_alive(pid):
            return 1
        if not told and time.monotonic() - started > SLOW_AFTER_S:
            print("Loading the models ...", flush=True)
            told = True
        time.sleep(0.05)
    print(message(url), flush=True)
    return 0


def is_ready(url: str) -> bool:
    """Tell whether /health/ready answers 200."""
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def is_alive(pid: int) -> bool:
    """Tell whether the process is there; process 0 stands for none to watch."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def message(url: str) -> str:
    """Return what a user reads when the service is ready."""
    header = "-H 'content-type: application/json'"
    curls = (f"  curl -s {url}/{path} {header} -d '{body}'" for path, body in EXAMPLES)
    return "\n".join((f"\nReady at {url} (docs: {url}/docs). Try:", *curls, "Ctrl-C stops it."))


if __name__ == "__main__":
    sys.exit(main())
