"""ControlNets as a service (Katz, section 5): latents in, residuals out, once per denoising step."""
