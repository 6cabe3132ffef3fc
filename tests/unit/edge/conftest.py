from tests.support.edge_packages import missing

collect_ignore_glob = ["test_*.py"] if missing() else []
