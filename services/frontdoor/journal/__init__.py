"""Write requests to the journal, recover them after a start, and delete old ones."""
