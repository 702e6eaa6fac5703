"""``python -m graphcache``: the command line, where its script is not on the path."""

from graphcache.cli import main

if __name__ == "__main__":
    main()
