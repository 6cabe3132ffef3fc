"""Transfer tensors between processes (Katz, section 5): gRPC carries the control message, and the fastest transport of
both ends carries the bytes. Only `device` and `cuda` import torch.

| module | contents |
| --- | --- |
| `outgoing` | a tensor to send, and the layout of tensors in a slot or bundle |
| `regions` | memory that two processes share: made, opened, unlinked, swept, kept for the next streams |
| `slots` | slots of a region, each written once per generation and free again when acknowledged |
| `lines` | FIFOs between two processes of a host, for messages that describe the contents of slots |
| `step_lines` | steps and answers over such a line, at both ends |
| `step_server` | the answering end of a stream of steps, by messages and by a line; a failed step ends its stream |
| `chunks` | a bundle split into messages of 1 MiB, and reassembled |
| `sending`, `receiving` | the two ends of a stream's tensors, and their common transports |
| `device` | torch tensors in and out, with a single copy into the transport's memory |
| `cuda` | regions in the memory of a CUDA device |
| `metrics` | bytes by transport, and the reasons for fallbacks |
"""
