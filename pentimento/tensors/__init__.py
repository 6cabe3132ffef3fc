"""Tensors between processes (Katz, section 5): the control message goes through gRPC, the bytes go the shortest way
that both ends have. Nothing here knows torch but `device` and
`cuda`.

| module | what it does |
| --- | --- |
| `outgoing` | a tensor to be sent, and how tensors lie one after the other in a slot or bundle |
| `regions` | memory that two processes share: made, opened, unlinked, swept |
| `slots` | places in a region, each written once a generation and free again when acknowledged |
| `lines` | FIFOs between two processes of a host, for messages that say what lies in which slot |
| `step_lines`, `lined_steps` | steps and answers over such a line, at both ends; how a failed step ends its stream |
| `kept_regions` | regions of streams that ended, for the next ones |
| `chunks` | a bundle cut into messages of 1 MiB, and put together again |
| `negotiation` | what an end can do, and what both can |
| `sending`, `receiving` | the two ends of a stream's tensors |
| `device` | torch tensors in and out, without a copy beyond the one into what travels |
| `cuda` | regions in the memory of a CUDA device |
| `metrics` | bytes by transport, and why a better one was not taken |
"""
