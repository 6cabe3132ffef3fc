"""Serve ControlNets (Katz, section 5): latents in, residuals out, once per denoising step."""
