"""Steps recorded as CUDA graphs: small networks wait for the launch of kernels, not for kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

# Calls before the recording: libraries choose their algorithms and optimisers make their state.
WARM_UP = 3


class CudaRecorder:
    """Records CUDA graphs, all in one pool of memory: at most one of them runs at a time, and
    nobody reads their results after the next replay."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = None

    def aside(self, run: Callable[[], Any]) -> Any:
        """Run it where it will be recorded, to warm up."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            result = run()
        here.wait_stream(self.stream)
        return result

    def record(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Record it without effect on any tensor.

        Returns:
            what replays it and returns its result, in tensors that the next replay writes anew.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads (a loader that pins memory) may go on using CUDA meanwhile.
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            result = run()
        self.pool = graph.pool()

        def replay() -> Any:
            graph.replay()
            return result

        return replay


class Recorded:
    """A function of tensors that is recorded after a few calls and replayed from then on.

    Its arguments must keep their shapes, and whatever else it reads or writes must stay where it is
    in memory. Random numbers are fresh at every replay. Where recording fails, the function itself
    goes on being called.

    Arguments:
        run: from tensors to a tree of tensors, or to ``None``.
        failed: is told why nothing was recorded.
    """

    def __init__(
        self, run: Callable[..., Any], recorder: CudaRecorder, failed: Callable[[str], None]
    ) -> None:
        self.run, self.recorder, self.failed = run, recorder, failed
        self.calls = 0
        self.replay: Callable[[], Any] | None = None
        self._inputs: Sequence[Tensor] = ()
        self._broken = False

    def __call__(self, *inputs: Tensor) -> Any:
        self.calls += 1
        if self._broken:
            return self.run(*inputs)
        if self.calls <= WARM_UP:
            return self.recorder.aside(lambda: self.run(*inputs))
        if self.replay is None:
            self._inputs = [t.clone(memory_format=torch.preserve_format) for t in inputs]
            try:
                self.replay = self.recorder.record(lambda: self.run(*self._inputs))
            except Exception as error:  # what CUDA may not record is many things
                self._broken = True
                self.failed(f"{type(error).__name__}: {error}".splitlines()[0])
                return self.run(*inputs)
        elif inputs:
            torch._foreach_copy_(list(self._inputs), list(inputs))
        # The next replay writes over the results; a caller keeps them.
        return tree_map_only(Tensor, torch.clone, self.replay())
