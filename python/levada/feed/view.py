"""Describes a feed's latest pass, and gathers results from its ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from levada._levada import Metric, Pass
from levada.base.errors import InvalidArgument, printable_lines
from levada.feed.arguments import FeedArguments
from levada.feed.passes import BatchRows, JoinedFeed
from levada.feed.results import gather
from levada.feed.stats import End, FeedStats, Totals


class PassView(FeedArguments):
    """The attributes of a Feed that describe its latest pass."""

    _rows: BatchRows | None = None
    """Rows of the latest pass's last batch."""

    def _join(self) -> JoinedFeed:
        raise NotImplementedError

    @property
    def _core(self) -> Pass | None:
        """The latest pass."""
        raise NotImplementedError

    @property
    def _cause(self) -> str | None:
        """The cause of the latest pass's end; None if there is none."""
        core = self._core
        return None if core is None else (core.end or {}).get("cause")

    @property
    def step(self) -> int:
        """Number of steps taken so far in this pass. A step with micro-batches counts once its first one is taken."""
        core = self._core
        return 0 if core is None else core.step

    @property
    def micro(self) -> int:
        """Index of the last taken batch among the micro-batches of its step, from 0."""
        core = self._core
        return 0 if core is None else core.micro

    @property
    def num_micro(self) -> int:
        """Number of micro-batches in the step of the last taken batch."""
        core = self._core
        return 1 if core is None else core.num_micro

    @property
    def cp_size(self) -> int:
        """Number of context-parallel ranks that share the sequences of the last taken batch. With `max_cp` of a
        Balance, it differs from batch to batch."""
        core = self._core
        if not self._has_own_cp:
            return self.mesh.axis_size("cp")
        return 1 if core is None else core.cp_size

    @property
    def cp_rank(self) -> int:
        """Index of this rank among the ranks that share the sequences of the last taken batch."""
        core = self._core
        if not self._has_own_cp:
            return self.mesh.coordinate(self._join().job.rank, "cp")
        return 0 if core is None else core.cp_rank

    @property
    def _has_own_cp(self) -> bool:
        return self.balance is not None and self.balance.max_cp > 1

    @property
    def totals(self) -> Totals | None:
        """Samples, tokens and labels of the last taken batch's step, over all data-parallel ranks. After the last
        micro-batch of a step, they cover the whole step. They are the same on every rank and need no communication.
        None before the first batch, and if several ranks read."""
        core = self._core
        totals = None if core is None else core.totals
        return None if totals is None else Totals(*totals)

    @property
    def end(self) -> End | None:
        """How the pass ended; None while it runs."""
        core = self._core
        end = None if core is None else core.end  # read once: another thread may begin a call
        return None if end is None else End(**{**end, "message": printable_lines(end["message"])})

    @property
    def stats(self) -> FeedStats:
        """Counts of the pass so far."""
        core = self._core
        return FeedStats() if core is None else FeedStats(**core.stats)

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[Metric]:
        """Returns the stats as counters named `levada_feed_..._total`, each with `labels`, for a MetricsExporter. They
        are current even if another thread calls this while the feed's thread waits for a batch."""
        core = self._core
        return [] if core is None else core.metrics(list((labels or {}).items()))

    @property
    def balance_report(self) -> dict[str, Any] | None:
        """Balance of the steps that this rank planned as a reader. None on other ranks and without `balance`.

        - `steps`, `samples`, `tokens`, and `padding`, which the tokens include.
        - `micro_batches` of each rank, and `unused_share`, the share of max_tokens that they leave unused.
        - In units of the cost, summed over the steps: the work of the `busiest` rank; `busiest_unbalanced`, its work if
          ranks took the samples in their order; `bound`, a lower bound on the busiest rank's work; and the `mean`.
          `waiting` is the sum, over micro-batches, of the largest work of any rank; `waiting_bound` is a lower bound on
          it.
        - `delayed`: number of samples that `max_delay` delayed; `waited_steps`, the sum of their delays; and
          `longest_wait`.
        - `series`: the same values over time.
        """
        core = self._core
        report = None if core is None else core.balance
        return None if report is None else json.loads(report.to_json())

    @property
    def valid_rows(self) -> int:
        """Number of rows in the last taken batch that are data; they come first. With tail="pad" this may be smaller
        than the batch, and is 0 if the whole batch repeats another rank's. With `max_tokens`, the number of samples."""
        core = self._core
        if core is None:
            return 0
        rows = self._counted_rows
        if rows is None:
            return core.samples
        return rows if core.samples > 0 else 0

    @property
    def _counted_rows(self) -> int | None:
        """Number of rows of the last taken batch if the core counts whole batches."""
        rows = self._rows
        return rows.number if rows is not None and rows.counts_batches else None

    @property
    def _rows_of_results(self) -> dict[int, int]:
        """The numbers of results that gather() takes for the last batch, and how many of them it returns."""
        rows, valid = self._rows, self.valid_rows
        return {valid: valid} if rows is None or rows.number is None else {valid: valid, rows.number: valid}

    def gather(self, results: Any) -> Any:
        """Returns, on every rank, the results of all ranks for the rows of the last taken batch, in the order of the
        source and without padding rows. With `balance`, the results are in rank order. Collective; meant for
        predictions and metrics.

        `results` are tensors, arrays or lists with one element for each row of this rank's batch, or dicts and tuples
        of them. Ranks with the same data coordinate have the same results; ranks without results, such as early
        pipeline stages, pass None. Returned tensors are on this rank's device.

        Raises InvalidArgument if there are neither as many results as rows nor as valid_rows, and with `max_cp`, because
        ranks then have parts of samples."""
        if self._has_own_cp:
            raise InvalidArgument("gather() takes results of whole samples, and with max_cp a rank has parts of them; use a feed without max_cp to evaluate")
        joined = self._join()
        return gather(joined.job, self.mesh, results, self._rows_of_results, self.timeout)
