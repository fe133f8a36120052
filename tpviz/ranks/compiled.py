"""torch.compile and recording: the compiler sees none of the recorder, the recorder what it made.

Dynamo traces whatever Python runs in a frame that it compiles. So what follows a program pauses
while it compiles, and frames of ours that run between compiled ones are left as they are
(`compute.leave_alone`). Nothing of a recording gets into compiled code nor into its guards: what
was compiled before is used while recording, and what was compiled meanwhile is used afterwards.

Kernels that Inductor generates are no operators. They are globals of the modules that it writes,
"cpp_..." (functions) or "triton_..." (with a method ``run``), and stand-ins take their places while
recording.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import compute

if TYPE_CHECKING:
    from .phases import Phases


class CompiledCode:
    """While entered, ``note`` gets a `compute.Note`'s fields after each generated kernel.

    ``pausing`` are paused while torch.compile compiles; ``see`` is called with each kernel's
    arguments, among which are the buffers it writes.
    """

    def __init__(
        self,
        now: Callable[[], Any],
        note: Callable[[tuple[Any, ...]], Any],
        pausing: "Sequence[Phases | compute.KernelHook | compute.EveryOperator]",
        see: Callable[[list[torch.Tensor]], Any] | None = None,
    ):
        self.now, self.note, self.pausing, self.see = now, note, pausing, see
        self.replaced = []  # (module, name, kernel)

    def __enter__(self):
        # slow to import: with the first recording
        from torch._dynamo import callback_handler  # pyright: ignore[reportPrivateImportUsage]

        self.handler = callback_handler
        self.handler.register_start_callback(self._compiling)
        self.handler.register_end_callback(self._compiled)
        self._stand_in()
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            self.handler.remove_start_callback(self._compiling)
            self.handler.remove_end_callback(self._compiled)
        for module, name, kernel in self.replaced:
            setattr(module, name, kernel)
        self.replaced.clear()

    def _compiling(self, *_):
        for follower in self.pausing:
            follower.pause()

    def _compiled(self, *_):
        for follower in self.pausing:
            follower.resume()
        self._stand_in()

    def _stand_in(self):
        codecache = sys.modules.get("torch._inductor.codecache")
        for module in codecache.PyCodeCache.modules if codecache else ():
            for name, kernel in list(vars(module).items()):
                if name.startswith(("cpp_", "triton_")) and not isinstance(kernel, _StandIn):
                    self.replaced.append((module, name, kernel))
                    setattr(module, name, _StandIn(name, kernel, self))


class _StandIn:
    """In place of one generated kernel: runs it and notes it; an operator, as notes name it."""

    def __init__(self, name, kernel, recording):
        self.__name__, self.overloadpacket = name, self
        self.kernel, self.recording = kernel, recording

    def __call__(self, *args):
        return self._noted(self.kernel, args, {})

    def run(self, *args, **kwargs):
        """Launch a Triton kernel."""
        return self._noted(self.kernel.run, args, kwargs)

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def _noted(self, run, args, kwargs):
        recording = self.recording
        start = recording.now()
        result = run(*args, **kwargs)
        end = recording.now()
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        dtype = tensors[0].dtype if tensors else None
        recording.note(compute.fields(self, start, end, [t.shape for t in tensors], dtype))
        if recording.see:
            recording.see(tensors)
        return result
