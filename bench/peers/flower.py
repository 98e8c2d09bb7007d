"""flower.py -- FedAvg by Flower's simulation, beside `lockstep train --clients` (bench/clients).

    flower.py IMAGES LABELS CLIENTS FRACTION BATCH ROUNDS

Model, data and rates are those of bench/clients: a network of 784-200-200-10, iid clients, one local
epoch.  Clients keep the data in memory between rounds, and use one thread each.  All random numbers
have seeds: those of a client by round and client.  Prints a JSON object with the seconds of each
round, and a hash of the last weights.
"""
import gzip, hashlib, json, logging, os, random, sys, time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

IMAGES, LABELS = sys.argv[1:3]
CLIENTS, BATCH, ROUNDS = (int(sys.argv[i]) for i in (3, 5, 6))
FRACTION, LR, HELD_OUT = float(sys.argv[4]), 0.05, 0.1
_data = {}


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200),
                               torch.nn.ReLU(), torch.nn.Linear(200, 10))


def part(client):
    """The samples of a client."""
    if not _data:
        x = np.frombuffer(gzip.open(IMAGES).read(), np.uint8, offset=16).reshape(-1, 784)
        y = np.frombuffer(gzip.open(LABELS).read(), np.uint8, offset=8).astype(np.int64)
        order = np.random.default_rng(0).permutation(len(y))[int(HELD_OUT * len(y)):]
        _data["x"] = torch.from_numpy(((x / np.float32(255)) - 0.1307).astype(np.float32) / 0.3081)
        _data["y"], _data["parts"] = torch.from_numpy(y), np.array_split(order, CLIENTS)
    at = torch.from_numpy(_data["parts"][client])
    return _data["x"][at], _data["y"][at]


app = ClientApp()


@app.train()
def train(message: Message, context: Context):
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    x, y = part(client)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    step = int(message.content["config"]["server-round"])
    total = 0.0
    for at in np.array_split(np.random.default_rng([step, client]).permutation(len(y)),
                             range(BATCH, len(y), BATCH)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[at]), y[at])
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(at)
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()),
                          "metrics": MetricRecord({"loss": total / len(y), "num-examples": len(y)})})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Notes when each round ends."""
    ends: list = []

    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return out


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context):
    random.seed(0)
    strategy = Timed(fraction_train=FRACTION, fraction_evaluate=0.0, min_train_nodes=1,
                     min_available_nodes=CLIENTS)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model().state_dict()),
                            num_rounds=ROUNDS)
    weights = hashlib.sha256()
    for values in result.arrays.to_torch_state_dict().values():
        weights.update(values.numpy().tobytes())
    ends = strategy.ends
    print(json.dumps({"seconds": [b - a for a, b in zip(ends, ends[1:])],
                      "weights": weights.hexdigest()}), flush=True)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(server_app=server, client_app=app, num_supernodes=CLIENTS,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
