"""Which steps of its schedule an emulated attempt takes, and what it makes of being asked to take fewer while it runs:
what the step engine does with a picture, without one."""

from pentimento.domain.thinned_steps import taken_count, taken_steps


class AttemptSteps:
    """Of one attempt, from `first_step` of `step_count` on; `thinned_steps` are those that it takes from the first of
    them on, none for all. Steps are numbers of the schedule, and what is left is counted in steps that are taken."""

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
        """Return the step that comes next where so many are left; the number of steps where none is."""
        return self._steps[-1 - left]

    def is_thinned_at(self, step: int) -> bool:
        """Return whether steps before that one were left out."""
        return bool(self.thinned_steps) and step > self.thinned_steps[0]

    def thin(self, steps: tuple[int, ...]) -> None:
        """Changes state: take these steps alone from the first of them on, from the next step boundary."""
        self._asked = steps

    def left_after(self, left: int) -> int:
        """Changes state: between two steps, return how many are left once what was asked for is left out. What was
        asked too late, or of an attempt that leaves out steps already, is not heeded."""
        asked, self._asked = self._asked, ()
        step = self.reached(left)
        if not asked or self.thinned_steps or step > asked[0]:
            return left
        self.thinned_steps = asked
        self._steps = (*taken_steps(asked, self.step_count, self.first_step), self.step_count)
        return taken_count(asked, self.step_count, step)
