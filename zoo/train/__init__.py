"""Train the parts: `python -m zoo.train PART`. Here are the loop, the parts with their foundations, and a module a
part.
"""
