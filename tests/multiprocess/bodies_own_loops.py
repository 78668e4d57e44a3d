# SPDX-License-Identifier: Apache-2.0
"""Loops without a DataLoader, without an optimizer or with state of their own, as people write them.

Each runs as a worker of a job (`shares`), or as the plain torch script that the job must equal. It
returns the parameters after every update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import gangline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOKENS, WIDTH = 11, 5


@dataclass(frozen=True)
class Own:
    """Which loop, and how it is cut; without shares it is the plain script."""

    name: str
    shares: tuple[float, ...] | None = None
    accumulate: int = 1

    def prepare(self, *objects: Any, **options: Any) -> Any:
        if self.shares is None:
            return objects
        gangline.init(timeout_s=30)
        return gangline.prepare(*objects, shares=self.shares, accumulate=self.accumulate, **options)

    def mean(self, value: float, weight: float) -> float:
        return value if self.shares is None else gangline.mean(value, weight)


def run_own(own: Own) -> Tensor:
    """The parameters after every update."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(4)
    try:
        return torch.stack(list(globals()[f"own_{own.name}"](own)))
    finally:
        torch.set_default_dtype(before)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def plain_batches(length: int, batch: int) -> Iterator[list[int]]:
    for start in range(0, length, batch):
        yield list(range(start, min(start + batch, length)))


# --- loops that index their data themselves ----------------------------------------------------------


def own_language_model(own: Own) -> Iterator[Tensor]:
    """Blocks of one long text at random places, drawn with replacement for a number of steps."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(0, TOKENS, (60,), generator=generator)
    block, batch, steps = 6, 8, 5
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    places = RandomSampler(
        range(len(text) - block),
        replacement=True,
        num_samples=steps * batch,
        generator=generator,
    )
    if own.shares is None:
        drawn = list(places)
        loader: Iterable[list[int]] = [drawn[i : i + batch] for i in range(0, len(drawn), batch)]
    else:
        loader = gangline.batches(len(text) - block, global_batch=batch, sampler=places)
    model, optimizer, loader = own.prepare(model, optimizer, loader)
    for index in loader:
        x = torch.stack([text[i : i + block] for i in index])
        y = torch.stack([text[i + 1 : i + 1 + block] for i in index])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if gangline.is_update():
            yield flat(model)


def own_graph_network(own: Own) -> Iterator[Tensor]:
    """The forward pass over the whole graph, the loss over the batch's nodes."""
    generator = torch.Generator().manual_seed(2)
    nodes = 14
    links = (torch.rand(nodes, nodes, generator=generator) < 0.3).double() + torch.eye(nodes)
    links = links / links.sum(1, keepdim=True)
    features = torch.randn(nodes, 4, generator=generator, dtype=torch.float64)
    classes = torch.randint(0, 3, (nodes,), generator=generator)
    trained = torch.arange(0, nodes - 3)
    first, second = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
    model = nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader: Any = list(plain_batches(len(trained), len(trained)))
    if own.shares is not None:
        loader = gangline.batches(len(trained), global_batch=len(trained))
    model, optimizer, loader = own.prepare(model, optimizer, loader)
    for _ in range(4):
        for index in loader:
            optimizer.zero_grad()
            scores = links @ second(torch.relu(links @ first(features)))
            F.cross_entropy(scores[trained[index]], classes[trained[index]]).backward()
            optimizer.step()
            if gangline.is_update():
                yield flat(model)


def own_reinforce(own: Own) -> Iterator[Tensor]:
    """Episodes are the samples, numbered by their seeds; the baseline is the mean over all of them."""
    policy = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.3)
    loader: Any = list(plain_batches(18, 6))
    if own.shares is not None:
        loader = gangline.batches(18, global_batch=6)
    policy, optimizer, loader = own.prepare(policy, optimizer, loader)
    for episodes in loader:
        played = [play(policy, seed) for seed in episodes]
        returns = torch.tensor([gained for _, gained in played])
        baseline = own.mean(float(returns.mean()), weight=len(episodes))
        logs = torch.stack([log for log, _ in played])
        optimizer.zero_grad()
        (-logs * (returns - baseline)).mean().backward()
        optimizer.step()
        yield flat(policy)


def play(policy: nn.Module, seed: int) -> tuple[Tensor, float]:
    """The log-probability of an episode's actions, and what it gained."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(3, generator=generator, dtype=torch.float64)
    log, gained = torch.zeros(()), 0.0
    for _ in range(4):
        choices = F.log_softmax(policy(place), dim=0)
        action = int(torch.multinomial(choices.exp().detach(), 1, generator=generator))
        log = log + choices[action]
        place = 0.5 * place + torch.randn(3, generator=generator, dtype=torch.float64)
        gained += float(place[0]) * (1 if action else -1)
    return log, gained


# --- state that is carried from step to step ---------------------------------------------------------


class Recurrent(nn.Module):
    """Reads a text in columns, chunk by chunk; the state of a column goes on in the next chunk."""

    def __init__(self, columns: int, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.cell = nn.LSTM(WIDTH, WIDTH, layers)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.state = gangline.SampleState(columns, 2, layers, WIDTH)

    def forward(self, x: Tensor, columns: list[int]) -> Tensor:
        h, c = self.state[columns].permute(1, 2, 0, 3).contiguous()
        output, (h, c) = self.cell(self.embed(x), (h, c))
        self.state[columns] = torch.stack([h, c]).permute(2, 0, 1, 3)
        return self.head(output)


def columns_of_text(columns: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, TOKENS, (length, columns), generator=generator)


def own_carried_state(own: Own) -> Iterator[Tensor]:
    columns, chunk, length = 9, 4, 18
    text = columns_of_text(columns, length)
    chunks = -(-(length - 1) // chunk)
    model = Recurrent(columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if own.shares is None:
        yield from plain_recurrent(model, optimizer, text, chunk)
        return
    loader = gangline.batches(chunks * columns, global_batch=columns)
    model, optimizer, loader = own.prepare(model, optimizer, loader)
    for _ in range(2):
        model.state.reset()
        for index in loader:
            start = index[0] // columns * chunk
            mine = [i % columns for i in index]
            x, y = text[start : length - 1][:chunk, mine], text[start + 1 :][:chunk, mine]
            F.cross_entropy(model(x, mine).flatten(0, 1), y.flatten()).backward()
            if gangline.is_update():
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
                optimizer.zero_grad()
                yield flat(model)


def plain_recurrent(
    model: Any, optimizer: torch.optim.Optimizer, text: Tensor, chunk: int
) -> Iterator[Tensor]:
    """As in a script that has never heard of gangline: the state is a variable of the loop."""
    length, columns = text.shape
    for _ in range(2):
        hidden = (torch.zeros(2, columns, WIDTH), torch.zeros(2, columns, WIDTH))
        for start in range(0, length - 1, chunk):
            x, y = text[start : length - 1][:chunk], text[start + 1 :][:chunk]
            hidden = tuple(part.detach() for part in hidden)
            output, hidden = model.cell(model.embed(x), hidden)
            F.cross_entropy(model.head(output).flatten(0, 1), y.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad()
            yield flat(model)


# --- no optimizer ------------------------------------------------------------------------------------


def vectors(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True).tanh())


def own_hand_written_update(own: Own) -> Iterator[Tensor]:
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    model, loader = own.prepare(model, DataLoader(vectors(21), batch_size=8))
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        if not gangline.is_update():
            continue
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * (parameter.grad + 0.01 * parameter)
                parameter.grad = None
        yield flat(model)


def own_bare_parameters(own: Own) -> Iterator[Tensor]:
    """No module but a list of parameters, updated in the old manner; forward is never called."""
    weights = nn.ParameterList([torch.randn(4, 1), torch.zeros(1)])
    weights, loader = own.prepare(weights, DataLoader(vectors(21), batch_size=8))
    for x, y in loader:
        weights.zero_grad()
        F.mse_loss(x @ weights[0] + weights[1], y).backward()
        for parameter in weights.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.3)
        yield flat(weights)


# --- an optimizer around another one -----------------------------------------------------------------


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as it is usually written: two steps around a second pass."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.2, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        own = [one for group in self.param_groups for one in group["params"]]
        norm = torch.stack([parameter.grad.norm() for parameter in own]).norm()
        for parameter in own:
            self.state[parameter]["old"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=0.05 / float(norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["old"])
        self.base_optimizer.step()
        self.zero_grad()


def own_sharp(own: Own) -> Iterator[Tensor]:
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = Sharp(model.parameters())
    loader = DataLoader(vectors(21), batch_size=8)
    model, optimizer, _, loader = own.prepare(model, optimizer, optimizer.base_optimizer, loader)
    yield from be_sharp(model, optimizer, loader)


def be_sharp(model: Any, optimizer: Any, loader: Any) -> Iterator[Tensor]:
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        yield flat(model)


def sharp_message() -> str:
    """What is said where the inner optimizer is not prepared."""
    model: Any = nn.Linear(4, 1, dtype=torch.float64)
    optimizer: Any = Sharp(model.parameters())
    gangline.init(timeout_s=30)
    model, optimizer, loader = gangline.prepare(
        model, optimizer, DataLoader(vectors(16), batch_size=8)
    )
    try:
        list(be_sharp(model, optimizer, loader))
    except gangline.GanglineError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# --- loaders of other kinds --------------------------------------------------------------------------


def pairs(samples: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


class Collating(DataLoader[Any]):
    """As PyG's DataLoader: a subclass that brings its own collate_fn, and nothing else."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("collate_fn", None)
        super().__init__(*args, collate_fn=pairs, **options)


class Buckets:
    """A batch sampler whose batches have many sizes, drawn anew every epoch."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(6)
        self.sizes = [7, 1, 9, 4]

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(21, generator=self.generator)
        for part in order.split(self.sizes):
            yield part.tolist()

    def __len__(self) -> int:
        return len(self.sizes)


def train_on(own: Own, loader: Any, epochs: int = 3, **options: Any) -> Iterator[Tensor]:
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = own.prepare(model, optimizer, loader, **options)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if gangline.is_update():
                yield flat(model)


def own_loader_subclass(own: Own) -> Iterator[Tensor]:
    yield from train_on(own, Collating(vectors(21), batch_size=8))


def own_batch_sampler(own: Own) -> Iterator[Tensor]:
    yield from train_on(own, DataLoader(vectors(21), batch_sampler=Buckets()))


def own_plain_batch_sampler(own: Own) -> Iterator[Tensor]:
    """torch's own BatchSampler, given by hand: its order, size and drop_last are taken over."""
    sampler = BatchSampler(range(20, -1, -1), 8, drop_last=True)
    yield from train_on(own, DataLoader(vectors(21), batch_sampler=sampler))


OWN_LOOPS = sorted(name.removeprefix("own_") for name in list(globals()) if name.startswith("own_"))


def evaluate_buckets() -> list[list[float]]:
    """What this worker sees of an evaluation loader that has a batch sampler."""
    gangline.init(timeout_s=30)
    data = TensorDataset(torch.arange(21.0))
    loader = gangline.evaluate(DataLoader(data, batch_sampler=Buckets()))
    return [x.tolist() for (x,) in loader]


def lbfgs(is_plain: bool) -> Tensor:
    torch.manual_seed(4)
    model: Any = nn.Linear(4, 1, dtype=torch.float64)
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    loader: Any = DataLoader(vectors(16), batch_size=8)
    if not is_plain:
        gangline.init(timeout_s=30)
        model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for _ in range(2):
        for x, y in loader:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return flat(model)


def lbfgs_or_message() -> str:
    try:
        lbfgs(is_plain=False)
    except gangline.GanglineError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def carry_wrongly(how: str) -> str:
    """Writes a SampleState where the other workers would not get it."""
    gangline.init(timeout_s=30)
    model: Any = nn.Linear(4, 1, dtype=torch.float64)
    state = gangline.SampleState(8, 1, dtype=torch.float64)
    if how != "not prepared":
        model.state = state
    indices = [0, 1, 0, 1] if how == "twice" else list(range(4))
    loader = gangline.batches(8, global_batch=4, sampler=indices)
    x, y = vectors(8).tensors
    try:
        model, loader = gangline.prepare(model, loader, shares=(1, 1))
        if how == "outside":
            state[[0]] = torch.ones(1, 1)
        for index in loader:
            output = model(x[index])
            if how != "late":
                state[index] = output
            F.mse_loss(output, y[index]).backward()
            state[index] = output
    except gangline.GanglineError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
