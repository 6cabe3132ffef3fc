"""Tensors between processes: `wire` (raw bytes and a dtype, free of torch) and `device` (torch's side of it)."""
