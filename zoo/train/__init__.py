"""The trainings: `python -m zoo.train PART`. The loop, the parts and what each stands on, and a module a part."""
