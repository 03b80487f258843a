#!/usr/bin/env bash
# A hook of shell-operator.
set -euo pipefail
if [ "${1:-}" = --config ]; then
    echo '{"configVersion": "v1", "kubernetes": [{"apiVersion": "test.reschedule.dev/v1", "kind": "Hooked"}]}'
    exit 0
fi
python3 - "$BINDING_CONTEXT_PATH" <<'PROGRAM'
import json, os, sys, time
for event in json.load(open(sys.argv[1])):
    said = event["object"].get("spec", {}).get("say", "")
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{event['object']['metadata']['name']} {event['watchEvent']} {said}\n")
    if said == "hang":
        time.sleep(600)
    sys.exit(said == "fail")
PROGRAM
