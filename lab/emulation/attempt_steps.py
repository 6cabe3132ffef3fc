"""Track the steps of an emulated attempt, and thin them while it runs, as the step engine does for a real image."""

from pentimento.domain.thinned_steps import taken_count, taken_steps


class AttemptSteps:
    """The steps of one attempt, from `first_step` up to `step_count`. `thinned_steps` are the steps to take from its
    first entry on; empty: all. Steps are schedule numbers; remaining ones are counted in steps taken."""

    def __init__(self, first_step: int, step_count: int, thinned_steps: tuple[int, ...] = ()) -> None:
        self.first_step = first_step
        self.step_count = step_count
        self.thinned_steps = thinned_steps
        # The steps that it takes, and where the last one leads.
        self._steps = (*taken_steps(thinned_steps, step_count, first_step), step_count)
        self._asked: tuple[int, ...] = ()

    @property
    def taken_count(self) -> int:
        """Return how many steps it takes in all."""
        return len(self._steps) - 1

    def reached(self, left: int) -> int:
        """Return the next step if `left` steps remain; the step count if none does."""
        return self._steps[-1 - left]

    def is_thinned_at(self, step: int) -> bool:
        """Return whether steps before that one were left out."""
        return bool(self.thinned_steps) and step > self.thinned_steps[0]

    def thin(self, steps: tuple[int, ...]) -> None:
        """Take only these steps, from the next step boundary."""
        self._asked = steps

    def left_after(self, left: int) -> int:
        """Apply a requested thinning between two steps, and return how many steps remain. A late request, or one for an
        attempt that is thinned already, has no effect."""
        asked, self._asked = self._asked, ()
        step = self.reached(left)
        if not asked or self.thinned_steps or step > asked[0]:
            return left
        self.thinned_steps = asked
        self._steps = (*taken_steps(asked, self.step_count, self.first_step), self.step_count)
        return taken_count(asked, self.step_count, step)
