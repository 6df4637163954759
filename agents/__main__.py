"""`python -m agents`."""

import sys

if __name__ == "__main__":
    try:
        from agents.command import app
        from bus.cli.main import run_edge
    except KeyboardInterrupt:
        # Importing takes a moment; Ctrl-C in it is no reason for a traceback.
        sys.exit(130)
    run_edge(app)
