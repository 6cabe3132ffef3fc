"""Build the site of the documentation, and check it: a warning or a broken link fails.

    python scripts/build_site.py                    # into build/site
    python scripts/build_site.py --source DIR OUT   # another tree with a docs/conf.py

This repository's site also has the API references (`docs/reference/{api,http}.md`), which are generated first and not
committed. Sphinx's cache is OUT.doctrees, so a second build reads only changed pages.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK = Path(__file__).with_name("check_site.py")
GENERATE = Path(__file__).with_name("generate_reference.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build" / "site", help="the folder of the site")
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree with the pages")
    options = parser.parse_args()
    kept = options.out.with_name(f"{options.out.name}.doctrees")
    strict = ["--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
    places = ["-c", options.source / "docs", "-d", kept, options.source, options.out]
    generate = [[GENERATE, "--site"]] if options.source.resolve() == ROOT else []
    for command in (*generate, ["-m", "sphinx", "-b", "html", *strict, *places], [CHECK, options.out]):
        done = subprocess.run([sys.executable, *command], check=False)
        if done.returncode:
            sys.exit(done.returncode)
    print(options.out / "index.html")


if __name__ == "__main__":
    main()
