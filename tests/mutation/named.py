"""Mutants by hand, each with the promise that it breaks: every one must be killed.

    make mutants-named                  # about ten minutes on two cores

named*.json hold them: what is broken, the file, the text before and after, and the tests that must notice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from place import Place

SECONDS = 900.0


def main() -> None:
    files = sorted(Path(__file__).parent.glob("named*.json"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    rows = [row for row in rows if not sys.argv[1:] or any(word in row["name"] for word in sys.argv[1:])]
    place, alive = Place("named"), 0
    for row in rows:
        text = (place.folder / row["file"]).read_text(encoding="utf-8")
        if text.count(row["old"]) != 1:
            sys.exit(f"{row['name']}: {row['file']} holds the old text {text.count(row['old'])} times; once is needed")
        outcome = place.outcome(row["file"], text.replace(row["old"], row["new"]), row["tests"], SECONDS)
        alive += outcome != "killed"
        print(f"{outcome:9} {row['name']} ({row['file']}; {' '.join(row['tests'])})", flush=True)
    print(f"{len(rows) - alive} of {len(rows)} killed")
    sys.exit(alive > 0)


if __name__ == "__main__":
    main()
