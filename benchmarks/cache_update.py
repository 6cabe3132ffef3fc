"""What an update of the cache costs: 10,000 new entries put into the index, and the match predictor trained anew.

    python -m benchmarks.cache_update

Entries go from the ledger into the embedded index as the gateway's background round takes them. The predictor is
trained after 5 % of 10,000 entries changed; beside it, in the same round, stands a plain SGDOneClassSVM fit of the same
rows: what the paper's figure is of. The predictor keeps what it made of an entry when it came, so that only new entries
are looked at. NIRVANA (section 5.4) reports 0.04 s for the classifier and 7.5 s for the index, for 10,000 records.
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
