"""Where the loader stands after each step of a plan, and what the step adds to the sample digest (pure).

Called by the planner's thread for all steps that are planned together.
"""

from forebay.digest import digests_of
from forebay.loading.chunk import StepEnd
from forebay.order import RankOrder, RankPlan


def step_ends(order: RankOrder, epoch: int, position: int, plan: RankPlan) -> list[StepEnd]:
    """One for each step of a plan from a position of an epoch; the last step of an epoch ends at the next one's 0."""
    number = (epoch + 1) * order.steps() - order.steps(position)
    ends = []
    for step, (after, digest) in enumerate(zip(plan.after.tolist(), digests_of(plan, epoch), strict=True)):
        is_last = after == order.samples
        next_epoch, position = (epoch + 1, 0) if is_last else (epoch, after)
        ends.append(StepEnd(next_epoch, position, number + step, is_last, digest))
    return ends
