"""Transfer tensors between processes (Katz, section 5): gRPC carries the control message, and the fastest transport of
both ends carries the bytes. Only `cuda` imports torch.

| module | contents |
| --- | --- |
| `outgoing` | tensors to send, their layout in a slot or bundle, slots; counts of bytes |
| `regions` | memory that two processes share: made, opened, unlinked, swept, kept for the next streams |
| `lines` | FIFOs between two processes of a host, for messages that describe the contents of slots |
| `step_lines` | steps and answers over such a line, at both ends |
| `step_server` | the answering end of a stream of steps, by messages and by a line; a failed step ends its stream |
| `chunks` | a bundle split into messages of 1 MiB, and reassembled |
| `sending`, `receiving` | the two ends of a stream's tensors, and their common transports |
| `cuda` | torch tensors in and out, with one copy into the transport's memory; regions of a CUDA device |
"""
