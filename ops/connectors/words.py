"""Counts words: a program that knows nothing of the bus, reads a line of JSON, and answers it with another."""

import collections
import json
import sys

for line in sys.stdin:
    question = json.loads(line)
    if "cancel" in question:
        continue
    arguments = question["arguments"]
    counted = collections.Counter(arguments["text"].lower().split()).most_common(arguments["top"])
    print(json.dumps({"id": question["id"], "data": dict(counted)}), flush=True)
