"""`python -m pentimento.cli` is the `pentimento` command."""

from pentimento.cli import main

if __name__ == "__main__":
    main()
