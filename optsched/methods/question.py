"""What a method is asked, with the restrictions applied once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from optsched.model.errors import InfeasibleInstanceError
from optsched.model.feasibility import infeasibility_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions


@dataclass(frozen=True)
class Question:
    """An instance, an objective, and the class of schedules that answer."""

    instance: Instance
    objective: Objective
    restrictions: Restrictions

    @cached_property
    def restricted(self) -> Instance:
        """The instance with its rules and N tightened by the restrictions (`Restrictions.apply`).

        Raises
        ------
        InputError
            If the restrictions do not fit the instance.
        """
        return self.restrictions.apply(self.instance)

    @cached_property
    def infeasibility(self) -> InfeasibleInstanceError | None:
        """Why no schedule exists; None if one does."""
        return infeasibility_of(self.instance, self.restricted)
