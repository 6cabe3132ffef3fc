"""What the embedder counts, beside the RPC metrics that every process has. `kind` is text or image."""

from pentimento.telemetry import counter, histogram

BATCHES = counter("pentimento_embedder_batches_total", "Batches run by the model thread.", ["kind"])
BATCHED_ITEMS = counter("pentimento_embedder_batched_items_total", "Texts or images in those batches.", ["kind"])
BATCH_SECONDS = histogram("pentimento_embedder_batch_seconds", "Time of a batch on the model thread.", ["kind"])
QUEUE_SECONDS = histogram("pentimento_embedder_queue_seconds", "Wait of a text or image for its batch.", ["kind"])
MEMO_HITS = counter("pentimento_embedder_memo_hits_total", "Embeddings answered from the memo.", ["kind"])
MEMO_MISSES = counter("pentimento_embedder_memo_misses_total", "Embeddings that had to be computed.", ["kind"])
