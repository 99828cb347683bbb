"""`python -m tfpipe`."""

from tfpipe.cli.main import main

if __name__ == "__main__":
    main()
