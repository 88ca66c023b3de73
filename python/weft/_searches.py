"""Searches for the best strategy, and predictions of many variants of a job."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft._jobs import Job
from weft._library import call, ffi, lib, owned, strings, text, words_of
from weft._tables import Table

Progress = Callable[[str, int, int, float], Any]


class Strategy:
    """One strategy of a ranking."""

    def __init__(self, ranking: "Ranking", rank: int):
        self.rank = rank
        words: list[str] = []
        while (word := lib.weft_ranking_word(ranking._handle, rank, len(words))) != ffi.NULL:
            words.append(text(word))
        self.words = tuple(words)
        self.seconds = float(ranking.table["step_s"][rank])

    def __repr__(self) -> str:
        return f"<weft.Strategy {self.rank} of {self.seconds:.4g} s>"

    def job(self) -> Job:
        """The job with this strategy."""
        return Job.from_words(list(self.words))


class Ranking(Sequence[Strategy]):
    """The answer of `weft plan`: the simulated strategies, best first.

    `table` has every strategy of the space; column `fate` says how far the search came with it.
    """

    def __init__(self, pointer: Any):
        self._handle = owned(pointer, lib.weft_ranking_close)
        facts = ffi.new("weft_ranking_facts *")
        lib.weft_ranking_describe(self._handle, facts)
        self.space: int = facts.space
        self.counts: dict[str, int] = {
            name: getattr(facts, name)
            for name in ("break_a_rule", "do_not_fit", "ruled_out", "ranked", "simulated")}
        self.gap: float = facts.gap
        self.stopped: bool = facts.stopped
        self.wall_s: float = facts.wall_s
        self.table = Table(call(lib.weft_ranking_table, self._handle))

    def __len__(self) -> int:
        return self.counts["simulated"]

    def __getitem__(self, rank: Any) -> Any:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(len(self)))]
        if not -len(self) <= rank < len(self):
            raise IndexError(f"strategy {rank}: wanted 0..{len(self) - 1}")
        return Strategy(self, rank % len(self))

    def __repr__(self) -> str:
        return f"<weft.Ranking of {self.space} strategies, gap {self.gap:.2%}>"


def _interruptible(function: Callable[[], Any], stop: threading.Event) -> Any:
    """Runs `function` in another thread, so that this thread receives Ctrl-C and ends it early."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:  # raised again below, in the thread of the caller
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.2)
        except KeyboardInterrupt:
            stop.set()
    if failure and stop.is_set():
        raise KeyboardInterrupt from failure[0]
    if failure:
        raise failure[0]
    return result[0]


def plan(file: str | os.PathLike[str] | None = None, *, finalists: int = 0,
         whole_space: bool = False, progress: Progress | None = None, **settings: Any) -> Ranking:
    """Searches the strategies around a job for the shortest step, as `weft plan` does.

    Settings that are given keep their values; the others are searched. `finalists` strategies are
    simulated, 10 by default. `whole_space` also searches what `weft plan --whole-space` does.
    `progress(phase, done, of, best_seconds)` is called from another thread; returning False ends
    the search, as Ctrl-C does. The ranking then has the results so far.
    """
    stop = threading.Event()

    @ffi.callback("bool (void *, const char *, uint32_t, uint32_t, double)")
    def report(user: Any, phase: Any, done: int, of: int, best: float) -> bool:
        wanted = progress is None or progress(
            text(phase), done, of, best if math.isfinite(best) else math.nan) is not False
        return wanted and not stop.is_set()

    options = ffi.new("weft_ranking_options *", {"finalists": finalists, "progress": report,
                                                "whole_space": whole_space})
    n, array, kept = strings(words_of(file, settings))
    ranking = Ranking(_interruptible(lambda: call(lib.weft_ranking_open, n, array, options), stop))
    del kept
    return ranking


def sweep(lists: Mapping[str, Sequence[Any]], file: str | os.PathLike[str] | None = None, *,
          executor: str = "sim", **settings: Any) -> Table:
    """Predicts a job with every combination of lists of values, as `weft sweep` does.

        weft.sweep({"tp": [1, 2, 4], "micro_batch_size": [1, 2]}, model="gpt2-xl",
                   topology="dgx-a100", global_batch_size=64)
    """
    n, array, kept = strings(words_of(file, settings))
    texts = [f"{name}={','.join(_value(value) for value in values)}"
             for name, values in lists.items()]
    n_lists, list_array, kept_lists = strings(texts)
    table = call(lib.weft_sweep_table, n, array, n_lists, list_array, executor.encode())
    del kept, kept_lists
    return Table(table)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
