"""The command reschedule-kopf, which takes the place of kopf run."""

import argparse
import logging
import os
import sys

import kopf
from kopf._cogs.helpers import loaders

from reschedule_kopf.operator import run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="reschedule-kopf",
        description="Serves deliveries of a RescheduleSource with the handlers of a kopf operator.",
    )
    parser.add_argument("paths", nargs="*", metavar="FILE", help="files with handlers, as for kopf run")
    parser.add_argument("-m", "--module", dest="modules", action="append", default=[], help="a module with handlers")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="objects of every namespace (the default)")
    parser.add_argument(
        "-n", "--namespace", dest="namespaces", action="append", default=[], help="only objects of this namespace"
    )
    parser.add_argument(
        "--audience",
        default=os.environ.get("RESCHEDULE_AUDIENCE"),
        help="the sink.audience of the source; without it every sender is taken",
    )
    parser.add_argument(
        "--subject",
        dest="subjects",
        action="append",
        default=[],
        help="an account that may send; the default is every RescheduleSource of the own namespace",
    )
    parser.add_argument(
        "--port", type=int, default=int(os.environ.get("PORT", "8080")), help="the port of deliveries, $PORT or 8080"
    )
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds after which a delivery is answered with 503, 60 by default"
    )
    parser.add_argument("--grace", type=float, default=8, help="seconds that runs have after SIGTERM, 8 by default")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    args = parser.parse_args()
    if args.all_namespaces and args.namespaces:
        parser.error("either --namespace or --all-namespaces can be used, not both")
    kopf.configure(verbose=args.verbose, debug=args.debug, quiet=args.quiet)
    loaders.preload(paths=args.paths, modules=args.modules)
    code = 0
    try:
        run(
            audience=args.audience,
            subjects=args.subjects,
            port=args.port,
            timeout=args.timeout,
            grace=args.grace,
            namespaces=args.namespaces,
        )
    except ValueError as e:
        print(f"reschedule-kopf: {e}", file=sys.stderr)
        code = 1
    # A thread of a handler that hangs would keep the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
