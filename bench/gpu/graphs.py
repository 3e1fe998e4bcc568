"""Compares a training step captured as CUDA graphs, one for each set of the feed's device buffers, with the same step
run eagerly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import device
import levada
import torch

STEPS, ROWS, WIDTH, BUFFERS = 60, 256, 128, 3


def batches() -> Iterator[dict[str, torch.Tensor]]:
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        yield {"x": torch.randn(ROWS, WIDTH, generator=draw), "y": torch.randn(ROWS, 1, generator=draw)}


class Trainer:
    """Plain SGD, in place, on one linear layer and one hidden layer."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        self.weights = [torch.randn(WIDTH, WIDTH, generator=draw) / WIDTH, torch.randn(WIDTH, 1, generator=draw) / WIDTH]
        if not device.IS_STUB:
            self.weights = [weight.cuda().requires_grad_() for weight in self.weights]
        else:
            self.weights = [weight.requires_grad_() for weight in self.weights]
        self.losses: list[torch.Tensor] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = ((torch.tanh(x @ self.weights[0]) @ self.weights[1] - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight -= 0.1 * gradient
        return loss.detach()


def run_eagerly() -> list[float]:
    trainer = Trainer()
    for batch in batches():
        x, y = (batch["x"], batch["y"]) if device.IS_STUB else (batch["x"].cuda(), batch["y"].cuda())
        trainer.losses.append(trainer.step(x, y).clone())
    device.synchronize()
    return [float(loss) for loss in trainer.losses]


def run_captured() -> tuple[list[float], int]:
    """Returns the losses and the number of captured graphs."""
    trainer = Trainer()
    feed = levada.Feed(batches(), device="cuda", prefetch_to_device=True, device_buffers=BUFFERS)
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
    pool = torch.cuda.graph_pool_handle()
    for batch in feed:
        address = batch["x"].data_ptr()
        if address not in graphs:
            kept = [weight.detach().clone() for weight in trainer.weights]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                trainer.step(batch["x"], batch["y"])  # warms up
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # During the capture, the feed's thread copies the next batch.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                loss = trainer.step(batch["x"], batch["y"])
            with torch.no_grad():
                for weight, before in zip(trainer.weights, kept, strict=True):
                    weight.copy_(before)
            graphs[address] = graph, loss
        graph, loss = graphs[address]
        graph.replay()
        trainer.losses.append(loss.clone())
    device.synchronize()
    return [float(loss) for loss in trainer.losses], len(graphs)


def run_with_buffers() -> tuple[list[float], int]:
    """Runs the same without graphs, on the stub."""
    trainer, addresses, losses = Trainer(), set(), torch.zeros(STEPS)
    feed = levada.Feed(batches(), device="cuda", prefetch_to_device=True, device_buffers=BUFFERS)
    for step, batch in enumerate(feed):
        addresses.add(batch["x"].data_ptr())

        def learn(x: torch.Tensor, y: torch.Tensor, step: int = step) -> None:
            losses[step] = trainer.step(x, y)

        device.launch(learn, batch["x"], batch["y"])
    device.synchronize()
    return losses.tolist(), len(addresses)


def refuses_a_batch_that_is_kept() -> bool:
    kept = []
    try:
        for batch in levada.Feed(batches(), device="cuda", prefetch_to_device=True, device_buffers=BUFFERS):
            kept.append(batch["x"].view(-1)[:1])
    except levada.InvalidArgument as error:
        return "still referenced" in str(error) and len(kept) <= BUFFERS
    return False


def main() -> None:
    eager = run_eagerly()
    captured, graphs = run_with_buffers() if device.IS_STUB else run_captured()
    digest = hashlib.sha256(str(captured).encode()).hexdigest()[:8]
    device.tell(
        captured == eager and graphs == BUFFERS and refuses_a_batch_that_is_kept(),
        steps=STEPS, graphs=graphs, equal_losses=sum(a == b for a, b in zip(captured, eager, strict=True)), digest=digest,
    )


if __name__ == "__main__":
    main()
