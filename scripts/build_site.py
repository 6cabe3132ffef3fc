"""Build the site of the documentation, and check it: a warning, or a link that leads nowhere, fails.

    python scripts/build_site.py                    # into build/site
    python scripts/build_site.py --source DIR OUT   # of another tree with a docs/conf.py

What Sphinx keeps between builds lies in OUT.doctrees, so that the second build reads changed pages alone.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK = Path(__file__).with_name("check_site.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build" / "site", help="the folder of the site")
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree whose pages it is made of")
    options = parser.parse_args()
    kept = options.out.with_name(f"{options.out.name}.doctrees")
    strict = ["--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
    places = ["-c", options.source / "docs", "-d", kept, options.source, options.out]
    for command in (["-m", "sphinx", "-b", "html", *strict, *places], [CHECK, options.out]):
        done = subprocess.run([sys.executable, *command], check=False)
        if done.returncode:
            sys.exit(done.returncode)
    print(options.out / "index.html")


if __name__ == "__main__":
    main()
