"""`python -m pentimento.sdk` is the `pentimento` command."""

from pentimento.sdk.command import main

if __name__ == "__main__":
    main()
