"""Pack published measurements (CSV files of a folder) into tpviz/evidence/published/data.

    python bench/pack_validation.py FOLDER

Files of a kind, such as measured_rows.csv and measured_rows_2026.csv, become one: a gzip'd CSV with
their columns and one more, ``part``: whether its group of rows is to fit on or to test on
(`tpviz.evidence.published.split`). The result has the same bytes each time.
"""

import csv
import gzip
import io
import sys
from pathlib import Path

from tpviz.evidence.published.rows import DATA, FILES, group_of
from tpviz.evidence.published.split import split

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tables = {
        kind: [
            row
            for path in sorted(folder.glob(f"{kind}_rows*.csv"))
            for row in csv.DictReader(path.open(newline=""))
        ]
        for kind in FILES
    }
    groups = [group_of(row) for kind in tables if kind != "collective" for row in tables[kind]]
    parts = split(groups)
    for kind, rows in tables.items():
        more = {} if kind == "collective" else {"part": ""}
        text = io.StringIO(newline="")
        columns = dict.fromkeys(name for row in rows for name in row)
        out = csv.DictWriter(text, [*columns, *more], restval="", lineterminator="\n")
        out.writeheader()
        for row in rows:
            out.writerow(row | ({"part": parts[group_of(row)]} if more else {}))
        packed = gzip.compress(text.getvalue().encode(), 9, mtime=0)
        (DATA / f"{kind}.csv.gz").write_bytes(packed)
        print(f"{kind}: {len(rows)} rows, {len(packed)} bytes")
