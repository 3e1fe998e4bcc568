"""What a feed says of its pass, and what its ranks make of a step's results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from levada._levada import Metric, Pass
from levada.feed.passes import FeedArguments, FeedPass, JoinedFeed
from levada.feed.results import gather


class PassView(FeedArguments):
    """The attributes of a Feed that describe the pass that began last."""

    def _running_pass(self) -> FeedPass | None:
        raise NotImplementedError

    def _join(self) -> JoinedFeed:
        raise NotImplementedError

    @property
    def _core(self) -> Pass | None:
        """The pass that began last."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Steps of the pass taken so far. A step with micro-batches counts as soon as its first one is taken."""
        core = self._core
        return 0 if core is None else core.step

    @property
    def micro(self) -> int:
        """The number of the last taken batch among the micro-batches of its step, from 0."""
        core = self._core
        return 0 if core is None else core.micro

    @property
    def num_micro(self) -> int:
        """How many micro-batches the step of the last taken batch has."""
        core = self._core
        return 1 if core is None else core.num_micro

    @property
    def end(self) -> dict[str, Any] | None:
        """Why the pass ended: cause, step (the number of whole steps), rank, message; None while it runs. The causes
        "exhausted", "steps", "stopped" (request_stop()) and "failed" are the same on every rank. "left": this rank left its
        loop; "abandoned": another rank had left before."""
        core = self._core
        return None if core is None else core.end

    @property
    def stats(self) -> dict[str, Any]:
        """Counts of the pass: batches, samples, bytes, copied_batches; bytes_sent and bytes_read of a reader; seconds since
        it began; waited_seconds that next() waited; and taken_seconds, which are those and the rest of the time that next()
        took to get the batches from the engine."""
        core = self._core
        return {} if core is None else core.stats

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[Metric]:
        """The stats as the counters `levada_feed_..._total`, each with `labels`, for a MetricsExporter. During a pass they are
        up to date, also on another thread while this one waits for a batch."""
        core = self._core
        return [] if core is None else core.metrics(list((labels or {}).items()))

    @property
    def balance_report(self) -> dict[str, Any] | None:
        """How well the steps that this rank planned as a reader are balanced; None on other ranks and without `balance`.

        - `steps`, `samples`, `tokens`, and `padding`, which is counted in the tokens.
        - `micro_batches` of each rank; `unused_share`, the part of max_tokens that they do not fill.
        - In units of the cost, summed over the steps: the work of the `busiest` rank; `busiest_unbalanced`, the same if ranks
          took the samples in their order; `bound`, below which the busiest rank cannot be; and the `mean`. `waiting` is the sum
          over micro-batches of the rank that has most in it, and `waiting_bound` the least that this can be.
        - `delayed`: samples that `max_delay` made wait; `waited_steps` of all of them, and the `longest_wait`.
        - `series`: the same over time.
        """
        core = self._core
        report = None if core is None else core.balance
        return None if report is None else json.loads(report.to_json())

    @property
    def valid_rows(self) -> int:
        """How many rows of the batch taken last are data, which come first: all, or with tail="pad" fewer at the end, and 0 if
        the whole batch repeats another rank's. With `max_tokens` samples."""
        core = self._core
        if core is None:
            return 0
        running = self._running_pass()
        if running is None or running.rows is None:
            return core.samples
        return running.rows if core.samples > 0 else 0

    def gather(self, results: Any) -> Any:
        """Returns what the ranks made of the rows of the batch taken last, in the order of the source and without those of
        padding, on every rank: tensors, arrays or lists with an element for each row of this rank's batch, or dicts and tuples
        of them. Tensors return on this rank's device. Ranks of one data coordinate have the same results; those without results, such as early pipeline stages, pass None.
        Collective; meant for predictions and metrics. With `balance` the order is that of the ranks.

        Raises InvalidArgument for results of another length."""
        joined = self._join()
        return gather(joined.job, self.mesh, results, self.valid_rows, self.timeout)
