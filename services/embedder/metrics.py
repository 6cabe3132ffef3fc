"""Metrics of the embedder; the RPC metrics of every process are not among them. `kind` is text or image."""

from pentimento.telemetry import counter, histogram

BATCHES = counter("pentimento_embedder_batches_total", "Batches.", ["kind"])
BATCHED_ITEMS = counter("pentimento_embedder_batched_items_total", "Texts or images in batches.", ["kind"])
BATCH_SECONDS = histogram("pentimento_embedder_batch_seconds", "Time of a batch.", ["kind"])
QUEUE_SECONDS = histogram("pentimento_embedder_queue_seconds", "Time a text or image waits for its batch.", ["kind"])
MEMO_HITS = counter("pentimento_embedder_memo_hits_total", "Embeddings from the memo.", ["kind"])
MEMO_MISSES = counter("pentimento_embedder_memo_misses_total", "Computed embeddings.", ["kind"])
