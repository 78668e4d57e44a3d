# SPDX-License-Identifier: Apache-2.0
"""What drivers and workers of the tests run."""

SAMPLES, EPOCHS = 40, 100

# It takes longer than any test may, until there is a file that says otherwise.
TRAIN = f"""\
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gangline

torch.manual_seed(2)
gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn({SAMPLES}, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs({EPOCHS}):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.0 if os.path.exists(FOLDER + "/fast") else 0.5)
if gangline.is_main():
    print("trained", gangline.world_size(), flush=True)
"""

# The same with rows of a Ray data set, by a trainer.
TRAINER = f"""\
import os, sys, tempfile, time
import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig
from gangline.ray import GanglineTrainer

FOLDER = os.environ["GANGLINE_TEST"]


def loop(config):
    import torch
    from torch import nn
    import gangline
    import gangline.ray

    torch.manual_seed(0)
    gangline.init()
    loader = gangline.ray.get_dataset_shard("train").loader(8, shuffle=16)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for epoch in gangline.epochs(config["epochs"]):
        for batch in loader:
            assert torch.equal(batch["x"], 3 * batch["id"]), batch
            optimizer.zero_grad()
            model(batch["x"].float().unsqueeze(1)).square().mean().backward()
            optimizer.step()
            if config["fail"]:
                raise ValueError("as asked")
            time.sleep(0.0 if os.path.exists(config["folder"] + "/fast") else 0.3)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), folder + "/model.pt")
            checkpoint = Checkpoint.from_directory(folder)
            workers = gangline.world_size()
            gangline.ray.report({{"epoch": epoch, "workers": workers}}, checkpoint=checkpoint)
    return "a value"


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    rows = ray.data.range({SAMPLES}, override_num_blocks=5)
    rows = rows.map_batches(lambda batch: {{"id": batch["id"], "x": 3 * batch["id"]}})
    trainer = GanglineTrainer(
        loop,
        train_loop_config={{"epochs": 4, "folder": FOLDER, "fail": "fail" in sys.argv}},
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(name="rows", storage_path=FOLDER + "/storage"),
        datasets={{"train": rows}},
        dataset_rows={{"train": {SAMPLES}}},
        gangline_config={{"hosts": {{"listen": "127.0.0.1"}}, "manager": {{"everybody": True}}}},
    )
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as error:
        sys.exit(f"refused: {{error}}")
    assert result.error is None
    assert result.metrics["epoch"] == 3, result.metrics
    assert result.return_value == "a value"
    assert len(result.metrics_dataframe) == 4
    with result.checkpoint.as_directory() as folder:
        assert os.path.exists(folder + "/model.pt")
    print("well", result.path, flush=True)
"""

# A trainer of Ray Train's own, whose function has the two lines.
TORCH_TRAINER = """\
import os, sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import gangline

    torch.manual_seed(0)
    gangline.init()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for epoch in gangline.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    if gangline.is_main():
        with open(config["folder"] + "/result", "w") as file:
            file.write(f"{gangline.world_size()} workers, epoch {epoch}")


ray.init(address=sys.argv[1], log_to_driver=False)
folder = os.environ["GANGLINE_TEST"]
TorchTrainer(
    loop,
    train_loop_config={"folder": folder},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=folder + "/storage"),
).fit()
"""
