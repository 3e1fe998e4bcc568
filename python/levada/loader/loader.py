"""The loader of data sets that are read by index."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from levada import _levada
from levada._levada import Handoff
from levada.base.checks import check_choice, check_seconds, epoch_number, flag
from levada.base.errors import InvalidArgument
from levada.base.exception_texts import failure_text, text_of
from levada.base.keywords import explain_unknown
from levada.batch.balance import Balance, Cost
from levada.batch.memory import collate
from levada.batch.packing import packing_of
from levada.feed.arguments import count, count_or_none
from levada.feed.feed import Batch
from levada.feed.loaders import with_article
from levada.feed.makers import Maker
from levada.feed.passes import Beginning, FeedPass, JoinedFeed
from levada.feed.readers import BackgroundReader, InlineReader, Reader, await_earlier_passes
from levada.job.job import rank as own_rank
from levada.loader import arguments
from levada.loader.balanced import StepBalance
from levada.loader.counted import with_counts
from levada.loader.division import Division
from levada.loader.items import Making, Plan
from levada.loader.orders import Listed, Order, list_sampler
from levada.loader.passes import LoaderPass, Offer, PassCounts, StartedByNext, Taken, agreed, coordinates_of, pinned
from levada.loader.processes import BalancedMaker, NumberedMaker, WorkerOptions, Workers, start_fork_server
from levada.loader.states import LoaderState
from levada.loader.view import LoaderView

_ENDLESS = 1 << 50
"""Exceeds the draws of any run: the end of an endless pass."""


class DataLoader(LoaderView[Batch]):
    """Reads a map-style data set by index and feeds it to the ranks of a mesh: `for batch in loader`.

    Each item is made only once in the whole job, by worker processes of one rank at each data coordinate. The tp, cp
    and pp peers receive its batch from there. Order, division and random numbers depend only on the seed, the epoch and
    the position, so a state resumes on any mesh, batch size and number of workers. All ranks construct and iterate
    their loaders in the same way, with the arguments of torch's DataLoader. docs/dataloader.md is the guide.

    - `dataset`: a data set with len() and dataset[i], or a dict from names to such data sets, which are concatenated,
      or mixed by `weights`. Ranks that do not read may pass None.
    - `batch_size`: samples per data coordinate per step. None means that an item is a whole batch.
    - `shuffle`, `seed`: draw a different order for each epoch, by a keyed permutation. The initial_seed() of a torch
      `generator` may replace `seed`.
    - `sampler`, `batch_sampler`: decide the order. Each is listed once per epoch for the whole job, after its
      set_epoch().
    - `weights`: a number for each item, to draw with replacement; or for each name of a dict, to mix the data sets.
    - `num_samples`: number of draws in an epoch. Defaults to the number of items.
    - `epochs`: number of epochs that one `for` loop iterates without a break. None means without end.
    - `num_workers`: worker processes of each reading rank. With 0, items are made inside next().
    - `prefetch_factor`, `persistent_workers`: batches that each worker makes ahead; whether workers outlive a pass.
    - `worker_init_fn`: called in each worker with its index. torch's get_worker_info() works there.
    - `multiprocessing_context`: "forkserver", "spawn", or "fork", which starts the workers at once, before the rank
      joins a job.
    - `collate_fn`: makes a batch from a list of items. Defaults to levada.collate, or to levada.collate_packed with
      `balance`.
    - `drop_last`: discards an incomplete last step. Otherwise that step is divided evenly, and `valid` samples of each
      batch count. `pad_last` then repeats the batch's last sample, so that every batch has `batch_size` rows.
    - `lengths`: number of tokens of each item, as an array, a column's name, or a function of the index. `balance` and
      `max_tokens` then divide steps as in Feed, without making items.
    - `on_error`: "raise" raises ItemError on the reading rank and SourceError on all others. "skip" leaves the item out
      of its batch, but at most `max_skipped` items per reader per epoch.
    - `fingerprint`: a text that identifies the data. A state of other data is rejected.
    - `readers`: the ranks that read, as in Feed. None means "spread", one rank at each data coordinate, spread evenly
      over the hosts; with multiprocessing_context="fork" it means "dp", the first rank at each.
    - `timeout`: seconds that one wait may take. A worker that spends more than 0.8 of it on one batch ends the pass,
      and its stack is reported.
    - `pin_memory`: pins tensors if there is a CUDA device. `device` copies through separate pinned memory.
    - The other arguments are Feed's: data_axes, layout, prefetch, max_steps, on_peer_lost, access, device,
      prefetch_to_device, device_buffers, allow_pickle, check, group, record.

    After each batch, `valid` is the number of its first samples that count, and `global_valid` the number in the whole
    step. See also `numbers`, `epoch`, `step`, `skipped`, `global_tokens`. With balance, `valid` and `numbers` are None.
    """

    @explain_unknown("levada.DataLoader", arguments.FEED)
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 1800.0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        mesh: Any = None,
        seed: int = 0,
        weights: Sequence[float] | Mapping[str, float] | Any = None,
        num_samples: int | None = None,
        epochs: int | None = 1,
        pad_last: bool = False,
        lengths: Any = None,
        balance: Balance | Cost | None = None,
        max_tokens: int | None = None,
        on_error: str = "raise",
        max_skipped: int = 0,
        fingerprint: str = "",
        readers: str | None = None,
        **feed: Any,
    ) -> None:
        self._dataset = None if dataset is None else arguments.dataset_of(dataset)
        samples = count_or_none("batch_size", batch_size, smallest=1)
        self._num_workers = count("num_workers", num_workers)
        self.drop_last, self.pad_last = flag("drop_last", drop_last), flag("pad_last", pad_last)
        self.persistent_workers = flag("persistent_workers", persistent_workers)
        shuffle = flag("shuffle", shuffle)
        self._seed = arguments.seed_of(seed, generator)
        self._epochs = count_or_none("epochs", epochs, smallest=1)
        num_samples = count_or_none("num_samples", num_samples, smallest=1)
        arguments.check_order(
            shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler, weights=weights, num_samples=num_samples, epochs=epochs
        )
        is_batched = batch_sampler is not None
        arguments.check_steps(batch_size, is_batched=is_batched, drops=self.drop_last, pads=self.pad_last, in_order=flag("in_order", in_order))
        check_choice("on_error", on_error, ("raise", "skip"))
        arguments.check_functions(collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        context = arguments.context_name(multiprocessing_context)
        check_seconds("timeout", timeout if timeout != 0 else 1800.0)
        balanced = arguments.balance_of(balance, max_tokens, lengths, on_error)
        if balanced is not None and (samples is None or sampler is not None or is_batched or pad_last):
            raise InvalidArgument("balanced steps take batch_size, and no sampler, batch_sampler or pad_last")
        if feed.get("prefetch_to_device") and self.num_workers == 0:
            raise InvalidArgument("prefetch_to_device=True needs num_workers of 1 or more: without workers no batch is made ahead")
        if balanced is not None:
            feed |= {"balance": balanced, "max_tokens": max_tokens, "batch_size": samples}
            feed["tail"] = "drop" if self.drop_last else "short"
        super().__init__(
            (),
            mesh,
            readers=readers or ("dp" if context == "fork" else "spread"),
            iterate="thread" if self.num_workers else "inline",
            timeout=timeout or 1800.0,
            **feed,
        )
        self.batch_size = samples
        self._user_sampler, self._lists_batches = batch_sampler if is_batched else sampler, is_batched
        self.collate_fn = collate_fn if collate_fn is not None or balanced is not None or self._yields_items else collate
        self._order: Order | None = None
        if self.dataset is not None:
            self._order = Order(self.dataset, self.seed, shuffle=shuffle, weights=weights, num_samples=num_samples)
        self._lengths = arguments.lengths_of(lengths, self.dataset, self._order.items if self._order else None)
        self._fingerprint = str(fingerprint)
        self._skips = on_error == "skip"
        self._has_counts = self._skips or self._lists_batches
        if self._has_counts:
            self.layout = with_counts(self.layout)
        self._pins = flag("pin_memory", pin_memory) and self.device is None
        self._draws = self._order.draws if self._order is not None and self._user_sampler is None else None
        self._listed: tuple[int, Listed] | None = None  # the sampler's list for an epoch
        self._epoch = self._at = 0  # position of the next pass, if a state was loaded
        self._is_set = self._is_named = False  # set by load_state_dict(), and by set_epoch() after it
        self._left: tuple[int, int] | None = None  # a loaded state that must be at the end of its epoch
        self._loaded: LoaderState | None = None  # to be compared once the data set is known
        self._known_identity: dict[str, str] = {}  # identity of the readers' data set
        self._known_digest = ""  # digest of the readers' list for the latest pass
        self._passing: tuple[Plan, int, Any] | None = None  # the running pass: plan, draws per epoch, core
        self._unread: tuple[int, int] | None = None  # epoch and position at which max_steps ended the last pass
        self._pass_counts = self._pass_before = PassCounts()  # after the last batch taken, and before it
        self._worker_options = WorkerOptions(
            self.num_workers, context, prefetch_factor or 2, worker_init_fn, self.timeout, self.record, count("max_skipped", max_skipped)
        )
        self._workers: Workers | None = None
        if context == "fork" and self.num_workers > 0 and self.dataset is not None:
            if self.group is not None or self.readers in ("host", "spread"):
                raise InvalidArgument(f'multiprocessing_context="fork" excludes group= and readers="{self.readers}"')
            if own_rank() in _levada.readers_of(self.readers, self.mesh, [0] * self.mesh.size):
                self._own_workers().start()
        elif context == "forkserver" and self.num_workers > 0 and self.mesh.data_size == self.mesh.size:
            start_fork_server()  # every rank reads

    def __repr__(self) -> str:
        data = type(self.dataset).__name__
        return f"DataLoader({data}, batch_size={self.batch_size}, mesh={self.mesh}, readers={self.readers}, step {self.step})"

    @classmethod
    def like(cls, loader: Any, **changes: Any) -> DataLoader:
        """Returns a loader that reads the same data as a torch DataLoader, with its data set, batch size, workers and
        functions. A RandomSampler or DistributedSampler becomes `shuffle` and `seed`, and a WeightedRandomSampler
        becomes `weights`; other samplers, and samplers of other data, are kept. `changes`: arguments of DataLoader that
        replace or extend these."""
        return cls(**arguments.arguments_like(loader, changes))

    # The data of a pass

    @property
    def _length(self) -> int | None:
        """Number of draws in a whole pass, or None if unknown."""
        if self._draws is None:
            return None
        return self._draws * (self._epochs or max(_ENDLESS // self._draws, 1))

    def _division(self, begin: int, draws: int) -> Division:
        end = draws * (self._epochs or max(_ENDLESS // draws, 1))
        batch = self.batch_size or 1
        return Division(begin, end, batch, self.mesh.data_size, self.drop_last, self.pad_last)

    def _is_at_end(self, position: int, draws: int) -> bool:
        return position > 0 and self._division(position, draws).steps == 0

    def _list(self, epoch: int) -> Listed | None:
        if self._user_sampler is None or self._order is None:
            return None
        if self._listed is None or self._listed[0] != epoch:
            items, in_batches = self._order.items, self._lists_batches
            self._listed = epoch, list_sampler(self._user_sampler, epoch, self.seed, items, in_batches=in_batches)
        return self._listed[1]

    def _draws_of(self, epoch: int) -> int | None:
        """Returns the number of draws of an epoch, if known."""
        listed = self._list(epoch)
        return self._draws if listed is None else listed.draws

    def _identity(self) -> dict[str, str]:
        if self._order is None:
            return {}
        identity = self._order.identity() | {"fingerprint": self._fingerprint or "none"}
        if self._user_sampler is not None:
            del identity["draws"]
            kind = "batch_sampler" if self._lists_batches else "sampler"
            identity["order"] = f"{kind} {type(self._user_sampler).__name__}"
        return identity

    def _offer(self, *, reads: bool) -> Offer:
        begins = [str(self._epoch), str(self._at) if self._is_set else "0", "set_epoch()" if self._is_named else ""]
        settings = {
            "batch_size": str(self.batch_size),
            "drop_last": str(self.drop_last),
            "pad_last": str(self.pad_last),
            "epochs": str(self._epochs),
            "on_error": "skip" if self._skips else "raise",
            "the use of a batch_sampler": str(self._lists_batches),
            "the next epoch and position": " ".join(begins).strip(),
        }
        try:
            where, listed = self._begins(reads=reads)
            first = self._first_item(*where) if reads and self.check == "digests" else ""
            return Offer(reads, settings, self._identity(), where, "" if listed is None else listed.digest(), "", first)
        except Exception as error:
            text = text_of(error) if isinstance(error, InvalidArgument) else failure_text(error)
            return Offer(reads, settings, self._identity(), [], "", text)

    def _first_item(self, epoch: int, position: int, draws: int) -> str:
        """Makes the first item of a pass and returns its digest; "" if the pass has no item."""
        with contextlib.suppress(TypeError):  # an item that only collate_fn can handle
            item = self.item(position % draws, epoch + position // draws)
            return f"{_levada.digest_of(item, allow_pickle=self.allow_pickle):016x}"
        return ""

    def _begins(self, *, reads: bool) -> tuple[list[int], Listed | None]:
        """Returns [epoch, position, draws per epoch] of the next pass ([] if unknown here), and the sampler's list."""
        if self._order is None or (self._user_sampler is not None and not reads):
            return [], None
        if self._loaded is not None:
            self._loaded.expect_same(self._identity())
            if self._loaded.listed and (listed := self._list(self._loaded.epoch)) is not None:
                self._loaded.expect_same_list(listed.digest(), self._identity()["order"])
        if self._left is not None:
            epoch, position = self._left
            listed = self._list(epoch)
            self._expect_end(epoch, position, self._order.draws if listed is None else listed.draws)
        epoch, position = self._epoch, self._at if self._is_set else 0
        listed = self._list(epoch)
        draws = self._order.draws if listed is None else listed.draws
        if self._is_set and not self._is_named and self._is_at_end(position, draws):
            epoch, position = epoch + (self._epochs or 1), 0
            listed = self._list(epoch)
            draws = self._order.draws if listed is None else listed.draws
        if position == 0 and self._division(0, draws).steps == 0:
            a_step = (self.batch_size or 1) * self.mesh.data_size
            raise InvalidArgument(
                f"one step takes {a_step:,} draws, and a pass has only {draws * (self._epochs or 1):,}; lower batch_size, or set "
                "drop_last=False"
            )
        self._expect_divisible(position, draws)
        return [epoch, position, draws], listed

    def _expect_divisible(self, position: int, draws: int) -> None:
        division = self._division(position, draws)
        if self.balance is None or self._epochs is None or division.steps == 0 or (self.max_steps is not None and self.max_steps < division.steps):
            return
        last = division.step(division.steps - 1)[1]
        if last < division.ranks:
            raise InvalidArgument(
                f"the last step of the pass has {last} of its {division.batch * division.ranks:,} samples, and balanced steps need "
                f"at least one for each of {division.ranks} data-parallel ranks; set drop_last=True, or change batch_size"
            )

    def _expect_end(self, epoch: int, position: int, draws: int) -> None:
        if not self._is_at_end(position, draws):
            raise InvalidArgument(
                f"the loaded state is at position {position} of epoch {epoch}, and set_epoch() names a later epoch, which would "
                "drop the rest: name that epoch, or load no state"
            )

    # A pass

    def _begin(self, joined: JoinedFeed, _: object) -> Beginning:
        common = agreed(joined.job, self._offer(reads=joined.is_reader), self.timeout)
        if self._loaded is not None:
            self._loaded.expect_same(common.identity)
        epoch, position, draws = common.begins
        coordinates = coordinates_of(self.readers, self.mesh, joined.job) if joined.is_reader else ()
        self._known_identity, self._known_digest = common.identity, common.digest
        self._plan = Plan(epoch, self._division(position, draws), coordinates, self._list(epoch) if joined.is_reader else None)
        self._draws = draws
        if not joined.is_reader:
            return Beginning(None, 0)
        workers = self._own_workers()
        prepare = functools.partial(await_earlier_passes, workers, joined.job.rank, self.timeout)
        handoff = Handoff(1, 0, f"a batch of {type(self.dataset).__name__}", False, is_by_number=True)
        producer, begin = workers.producer, functools.partial(workers.begin, self._plan, renews=not self.persistent_workers)
        maker: Maker
        if (balanced := producer.making.balanced) is not None:
            has_workers = self.num_workers > 0
            maker = BalancedMaker(producer, self._plan, balanced, begin, handoff, self.allow_pickle, has_workers=has_workers)
        else:
            maker = NumberedMaker(begin, handoff, self.allow_pickle, joined.ranks_per_reader)
        reader: Reader = BackgroundReader(maker, workers) if self.num_workers else InlineReader(maker)
        return Beginning(handoff, 0, reader, prepare=prepare)

    def _own_workers(self) -> Workers:
        if self._workers is None:
            assert self._order is not None
            balanced = None
            if self.balance is not None and self._lengths is not None:
                packing = packing_of(self.collate_fn, self.balance.length, self.balance.multiple)
                balanced = StepBalance(self.balance, self.max_tokens, self._lengths, packing)
            making = Making(
                self.dataset, self._order, self.collate_fn, self._yields_items, self._skips, self._has_counts, balanced
            )
            self._workers = Workers(making, self._worker_options)
        return self._workers

    def __iter__(self) -> Iterator[Batch]:
        """Returns an iterator whose first next() starts a new pass, which is collective and closes a running pass."""
        return StartedByNext(self._start)

    def _open_pass(self, joined: JoinedFeed, begin: Beginning, name: str, empty: str) -> FeedPass:
        plan, draws = self._plan, self._draws
        assert draws is not None
        workers = self._workers
        started = LoaderPass(
            self,
            (plan, draws, self.mesh.data_coordinate(joined.job.rank)),
            joined,
            begin,
            name,
            self._sender,
            counts=self._has_counts,
            failed=lambda: None if workers is None else workers.failed,
            finish=pinned if self._pins else lambda batch: batch,
        )
        self._is_set, self._is_named, self._left, self._loaded, self._unread = False, False, None, None, None
        self._epoch, self._at = plan.epoch, plan.division.begin
        self._passing, self._pass_counts = (plan, draws, started.core), PassCounts()
        return started

    def _note_taken(self, taken: Taken) -> None:
        before = self._pass_before = self._pass_counts
        self._pass_counts = PassCounts(taken, before.samples + (taken.valid or 0), before.skipped + len(taken.left_out))

    def _note_end(self, plan: Plan, draws: int, taken: int) -> None:
        """Records that the pass has ended. The next pass begins with the epoch after that of its last draw."""
        end = plan.division.position(taken)
        self._unread = (plan.epoch, end) if taken < plan.division.steps else None
        self._passing, self._epoch, self._at = None, plan.epoch + (max(end, 1) - 1) // draws + 1, 0
        if not self.persistent_workers and self._workers is not None:
            self._workers.close()

    def close(self) -> None:
        """Leaves the running pass and ends the worker processes. All ranks may close at the same step; a rank that
        requests more raises PeerLost. The next pass starts new workers."""
        super().close()
        if self._workers is not None:
            self._workers.close()

    @property
    def epoch(self) -> int:
        """Epoch of the last batch during a pass, otherwise the epoch of the next pass."""
        if self._passing is not None and (taken := self._taken) is not None:
            return taken.epoch
        if not self._is_set or self._is_named or self._at == 0:
            return self._epoch
        draws = self._draws_of(self._epoch)
        is_over = draws is not None and self._is_at_end(self._at, draws)
        return self._epoch + (self._epochs or 1) if is_over else self._epoch

    def __len__(self) -> int:
        """Returns the number of steps in a whole pass. Raises TypeError for an endless pass, and as long as this rank
        does not know the length of the data set or of the sampler's list."""
        draws = self._draws
        if draws is None and self._user_sampler is not None and hasattr(self._user_sampler, "__len__"):
            draws = len(self._user_sampler)
        if self._epochs is None or draws is None:
            reason = "the pass has no end" if self._epochs is None else "it is known once a pass has begun"
            raise TypeError(f"this DataLoader has no length: {reason}")
        whole = self._division(0, draws).steps
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def item(self, position: int, epoch: int | None = None) -> Any:
        """Makes the item at a position of an epoch, by default the current one, in this process but with the same
        random numbers as in a worker. With a batch_sampler, makes the list of its items. Requires the data set on this
        rank."""
        if self._order is None:
            raise InvalidArgument("item() needs the data set, which is None on this rank")
        epoch = self.epoch if epoch is None else epoch_number(epoch, 2**62, "2**62")
        listed = self._list(epoch)
        draws = self._order.draws if listed is None else listed.draws
        if not 0 <= count("position", position) < draws:
            raise InvalidArgument(f"position is {position}, and an epoch has {draws:,} draws")
        plan = Plan(epoch, Division(0, draws, 1, 1, False, False), (0,), listed)
        making = Making(self.dataset, self._order, self.collate_fn, False, False, False)
        return Workers(making, self._worker_options._replace(processes=0)).producer.one(plan, position)

    # Positions

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. After load_state_dict(), `epoch` must be the state's epoch, which resumes,
        or the epoch after it if the state is at the end. Any other would drop the rest of an epoch and raises
        InvalidArgument."""
        epoch = epoch_number(epoch, 2**62, "2**62")
        with self._beginning:
            if not self._is_set or epoch == self._epoch:
                self._is_named = self._is_set
            else:
                if epoch != self._epoch + (self._epochs or 1):
                    raise InvalidArgument(
                        f"the loaded state is at position {self._at} of epoch {self._epoch}, and set_epoch({epoch}) would drop the "
                        "rest: name the state's epoch, or load no state"
                    )
                if self._draws is not None:
                    self._expect_end(self._epoch, self._at, self._draws)
                self._left, self._is_set, self._at = (self._epoch, self._at), False, 0
            if self._running_pass() is None:
                self._pass_counts = self._pass_counts._replace(taken=None)
            self._epoch, self._unread = epoch, None

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch taken: the epoch, the next draw, and the identity of the data and
        their order. Another run resumes from it on any mesh, batch size and number of workers. Raises InvalidArgument
        on a rank without a data set before the first pass."""
        epoch, position = self._epoch, self._at if self._is_set else 0
        listed = self._loaded.listed if self._loaded is not None and self._loaded.epoch == epoch else ""
        if self._unread is not None:
            (epoch, position), listed = self._unread, self._known_digest
        if self._passing is not None:
            plan, _, core = self._passing
            epoch, position, listed = plan.epoch, plan.division.position(core.position()[0]), self._known_digest
        identity = self._identity() or self._known_identity
        if not identity:
            raise InvalidArgument("this rank has no data set, so it knows what to save only after a pass has begun")
        return LoaderState(epoch, position, identity, listed if position else "").encode()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass resume where state_dict() was called; from the end of an epoch, it begins the next one.
        Raises InvalidArgument if `state` is not a DataLoader's state, or has another data set, seed or order. Iterating
        raises it on every rank if the sampler lists the state's epoch in another order."""
        loaded = LoaderState.decode(state)
        if self._order is not None:
            loaded.expect_same(self._identity())
        with self._beginning:
            super().close()
            self._passing, self._left, self._loaded, self._unread = None, None, loaded, None
            self._pass_counts = self._pass_counts._replace(taken=None)
            self._epoch, self._at, self._is_set, self._is_named = loaded.epoch, loaded.position, True, False
            if self._order is None:
                self._draws = loaded.draws
            length = self._length
            if length is not None and self._draws is not None and loaded.position > length:  # of more epochs per pass
                more = (loaded.position - 1) // self._draws
                self._epoch, self._at = loaded.epoch + more, loaded.position - more * self._draws
            self._next, self._last = self._next._replace(cursor=b"", samples=0), None

    @property
    def _source_name(self) -> str:
        return "a DataLoader" if self.dataset is None else f"a DataLoader of {with_article(type(self.dataset).__name__)}"

    def _pipeline_story(self) -> bytes | None:
        run = None if self._workers is None else self._workers.run
        return None if run is None else run._report()
