"""`python -m bus` is the command `bus`."""

from bus.cli.main import main

if __name__ == "__main__":
    main()
