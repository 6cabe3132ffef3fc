"""Measure an update of the cache: 10,000 new entries put into the index, and the match predictor trained again.

    python -m benchmarks.cache_update

Entries go from the ledger into the embedded index as in the gateway's background round. The predictor is trained after
5 % of 10,000 entries changed. The same round times a plain SGDOneClassSVM fit of the same rows, which is the paper's
figure. The predictor stores features of each entry at arrival, so that it reads only new entries. NIRVANA (section 5.4)
reports 0.04 s for the classifier and 7.5 s for the index, for 10,000 records.
"""

from benchmarks.index_inserting import insert_figures
from benchmarks.predictor_retraining import ENTRY_COUNT, retraining_figures
from benchmarks.report import parse_options, publish


def main() -> int:
    options = parse_options("cache_update", __doc__)
    rounds = 3 if options.quick else 21
    figures = insert_figures(3 if options.quick else 9) + retraining_figures(rounds)
    return publish(options, figures, notes={"entries": ENTRY_COUNT, "rounds": rounds})


if __name__ == "__main__":
    raise SystemExit(main())
