"""Describes a DataLoader and its latest batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levada._levada import Metric
from levada.base.errors import InvalidArgument
from levada.feed.feed import Batch, Feed
from levada.feed.stats import FeedStats, Totals
from levada.loader.balanced import Lengths
from levada.loader.items import Plan
from levada.loader.orders import Order
from levada.loader.passes import PassCounts, Taken

_SAMPLES = "levada_feed_samples_total"


class LoaderView(Feed[Batch]):
    """The attributes of a DataLoader that cannot be set, and those that describe its latest batch and the batch's step."""

    _dataset: Any
    _seed: int
    _num_workers: int
    _order: Order | None
    _user_sampler: Any
    _lengths: Lengths | None
    _lists_batches: bool
    _skips: bool
    batch_size: int | None
    _pass_counts: PassCounts
    _pass_before: PassCounts
    _passing: tuple[Plan, int, Any] | None

    @property
    def dataset(self) -> Any:
        """The data set, or None on a rank that was given none. The order and the workers are made for it, so it cannot
        be replaced."""
        return self._dataset

    @property
    def seed(self) -> int:
        """The seed of the order and of the items' random numbers."""
        return self._seed

    @property
    def num_workers(self) -> int:
        """Number of worker processes of each reading rank."""
        return self._num_workers

    @property
    def _delivered(self) -> PassCounts:
        """The counts after the last batch that the loop has. An interrupt in next() may drop the last batch taken."""
        counts, passing = self._pass_counts, self._passing
        if counts.taken is None or passing is None or counts.taken.step < passing[2].step:
            return counts
        return self._pass_before

    @property
    def _taken(self) -> Taken | None:
        return self._delivered.taken

    @property
    def skipped(self) -> int:
        """Number of items that on_error="skip" has left out of this rank's batches in the pass so far."""
        return self._delivered.skipped

    @property
    def valid(self) -> int | None:
        """Number of samples in the last batch that count; they come first, others are repeated. None with balance. With
        batch_size=None it is 1, or 0 for a repeated item; valid_rows is the number of the item's rows."""
        return 0 if self._taken is None else self._taken.valid

    @property
    def stats(self) -> FeedStats:
        """Counts of the pass so far. `samples` counts samples without padding."""
        stats = super().stats
        return stats if self.balance is not None else replace(stats, samples=self._delivered.samples)

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[Metric]:
        """Returns the stats as metrics, as Feed.metrics() does. `levada_feed_samples_total` is included only with
        balance, because otherwise the core counts batches and not their samples."""
        return [each for each in super().metrics(labels) if self.balance is not None or each.name != _SAMPLES]

    @property
    def global_valid(self) -> int:
        """Number of samples in the last step that count, on all ranks, including those left out by on_error="skip"."""
        return 0 if self._taken is None else self._taken.global_valid

    @property
    def numbers(self) -> list[int] | None:
        """Indexes of the items in the last batch, without repeated ones and those that on_error="skip" has left out.
        None with balance, and on nonreading ranks with a sampler."""
        taken = self._taken
        if taken is None or taken.valid is None:
            return None
        part = taken.plan.division.part(taken.step, taken.coordinate)
        drawn = self._numbers_of(taken.plan, part.first, part.draws)
        return None if drawn is None else [number for place, number in enumerate(drawn) if place not in taken.left_out]

    @property
    def totals(self) -> Totals | None:
        """Samples, tokens and labels of the last taken batch's step, as Feed.totals. None, too, for a step in which some
        rank has repeated samples, which would count: a last step, and each step with on_error="skip"."""
        taken = self._taken
        return super().totals if taken is None or self.balance is not None or self._is_whole(taken) else None

    def _is_whole(self, taken: Taken) -> bool:
        """Returns whether no rank has repeated samples in a step."""
        division = taken.plan.division
        if self._skips or division.step(taken.step)[1] < division.ranks:
            return False
        parts = (division.part(taken.step, rank) for rank in range(division.ranks))
        return not division.pad_last or all(part.draws == part.rows for part in parts)

    @property
    def global_tokens(self) -> int | None:
        """Number of tokens in the last step on all ranks, computed from `lengths`. None if unknown on this rank."""
        taken = self._taken
        if taken is None or self._lengths is None:
            return None
        numbers = self._numbers_of(taken.plan, *taken.plan.division.step(taken.step))
        return None if numbers is None else sum(self._lengths(numbers))

    def _numbers_of(self, plan: Plan, first: int, draws: int) -> list[int] | None:
        if plan.listed is not None:
            lists = plan.listed.numbers(first, draws)
        elif self._order is not None and self._user_sampler is None:
            lists = self._order.numbers(plan.epoch, first, draws)
        else:
            return None
        return [number for each in lists for number in each]

    @property
    def valid_rows(self) -> int:
        """Number of rows in the last batch that hold samples; the rows after them are padding. 0 before the first
        batch. With batch_size=None, the rows of the item."""
        valid = self.valid or 0
        rows = self._counted_rows if self._yields_items and valid > 0 else None
        return valid if rows is None else rows

    @property
    def _yields_items(self) -> bool:
        """Whether a batch is an item of the data set."""
        return self.batch_size is None and not self._lists_batches

    @property
    def _rows_of_results(self) -> dict[int, int]:
        taken, valid, rows = self._taken, self.valid_rows, self._counted_rows
        results = {valid: valid}
        if self._yields_items:
            results[1] = self.valid or 0  # one for the item
        elif taken is not None and not self._lists_batches:
            rows = taken.plan.division.part(taken.step, taken.coordinate).rows
        elif valid > 0 and not self._skips:
            rows = None  # a list is padded only if all of its samples are repeated, or some are left out
        return results if rows is None else results | {rows: valid}

    def gather(self, results: Any) -> Any:
        """Returns the results for all samples of the last step, in the order of the samples and without padding rows,
        as Feed.gather() does. Collective. Raises InvalidArgument for balanced steps, whose samples have no fixed
        position."""
        if self.valid is None:
            raise InvalidArgument("gather() is for batches of known samples; balanced steps have none")
        return super().gather(results)
