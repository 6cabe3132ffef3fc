"""Write requests to the journal, recover them after a start, delete them, and identify their frontdoor."""
