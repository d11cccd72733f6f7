"""``python -m normcheck`` is the command line."""

from normcheck.cli import main

if __name__ == "__main__":
    main()
