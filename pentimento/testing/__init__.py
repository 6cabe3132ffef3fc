"""What tests, benchmarks and the zoo share. Nothing that serves imports it; what it needs, the extra `dev` brings.

| module | what it does |
| --- | --- |
| `checkpoints` | tiny checkpoints of every family, in diffusers' layout |
| `diffusers_reference` | the latents that diffusers' own pipelines end with |
| `latent_listener` | the final latent of a painting, without a worker |
| `lora_files`, `lora_reference` | LoRA files, and pictures with them by diffusers and by the engine |
| `controlled_painting`, `controlnet_serving` | pictures with ControlNets: by diffusers, by the engine, by processes |
| `worker_process`, `worker_under_test` | a worker process, and its final latents beside the reference's |
| `paced_worker` | a worker that is told when to step |
| `frontdoor_suite`, `cascade` | a frontdoor in this process, over one such worker or over a light and a heavy one |
| `held_models` | a model as a worker would report it |
| `certificates` | a certificate authority, and what it signs |
| `raw_http2` | HTTP/2 frame by frame, for what no gRPC client sends |
| `clocks` | a clock in a test's hands |
| `machine` | what a figure was measured on, and when |
"""
