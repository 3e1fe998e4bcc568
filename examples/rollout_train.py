"""A small reinforcement-learning loop: levada run -n 4 examples/rollout_train.py [ROUNDS]

Three models share four ranks, each on a different mesh. The actor writes sequences (dp=4), the critic scores them
(dp=2, tp=2), and the trainer learns from both (pp=2, dp=1, tp=2) and sends its weights back to the actor.
levada.exchange moves all data between them: the three meshes determine which rank holds what. Every rank also computes
the whole round without communication and compares everything that it received, bit for bit.

The actor predicts a token by adding a row for the last one and a row for the one before it. These are two layers, which
are the trainer's two stages; their columns are its tensor-parallel shards. The reward is for counting upwards.
"""

import sys

import levada
import numpy as np
from levada import exchange

ACTOR, CRITIC = levada.Mesh(dp=4), levada.Mesh(dp=2, tp=2)
TRAINER = levada.Mesh(pp=2, dp=1, tp=2)
VOCABULARY, HIDDEN, SAMPLES = 16, 8, 32
SHARDS = [(layer, shard) for layer in range(2) for shard in range(2)]


def half(size, shard):
    return slice(shard * size // 2, (shard + 1) * size // 2)


def first_weights():
    return np.random.default_rng(0).normal(0, 0.1, (2, VOCABULARY, VOCABULARY))


def generate(weights, number):
    """Returns one sequence of the actor: its tokens, and the log-probabilities of all but the two prompt tokens."""
    random = np.random.default_rng(number)
    tokens = list(random.integers(0, VOCABULARY, 2))
    logprobs = []
    for _ in range(random.integers(2, 24)):
        logits = weights[0, tokens[-1]] + weights[1, tokens[-2]]
        chances = np.exp(logits - logits.max())
        chances /= chances.sum()
        tokens.append(random.choice(VOCABULARY, p=chances))
        logprobs.append(np.log(chances[tokens[-1]]))
    return np.array(tokens), np.float32(logprobs)


def reward_of(tokens):
    return np.mean(tokens[1:] == (tokens[:-1] + 1) % VOCABULARY, keepdims=True)


def rollout(weights, ids):
    made = [generate(weights, int(id)) for id in ids]
    fields = {"tokens": [tokens for tokens, _ in made], "logprobs": [logprobs for _, logprobs in made]}
    return exchange.SampleBatch(ids, fields | {"reward": [reward_of(tokens) for tokens, _ in made]})


def partial_values(tokens, shard):
    """Returns the contribution of one tensor-parallel shard of the critic to the value of each token."""
    random = np.random.default_rng(1)
    embedding, head = random.normal(size=(VOCABULARY, HIDDEN)), random.normal(0, 0.1, HIDDEN)
    return np.tanh(embedding[tokens, half(HIDDEN, shard)]) @ head[half(HIDDEN, shard)]


def score(batch, shard):
    values = [partial_values(batch.item("tokens", i), shard) for i in range(len(batch))]
    return exchange.SampleBatch(batch.ids, {f"value{shard}": values})


def learn(weights, batch, layer, shard):
    """Returns one layer's shard after one policy-gradient step."""
    columns = half(VOCABULARY, shard)
    change = np.zeros_like(weights[layer, :, columns])
    for i in range(len(batch)):
        tokens, value = batch.item("tokens", i), batch.item("value0", i) + batch.item("value1", i)
        logits = weights[0, tokens[1:-1]] + weights[1, tokens[:-2]]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        gain = np.eye(VOCABULARY)[tokens[2:]] - chances
        advantage = batch.item("reward", i) - value[1:-1]
        before = tokens[1:-1] if layer == 0 else tokens[:-2]
        np.add.at(change, before, (gain * advantage[:, None])[:, columns])
    return weights[layer, :, columns] + change / 2


def whole(batch, key_of):
    """Assembles the actor's weights from the trainer's shards."""
    weights = np.empty((2, VOCABULARY, VOCABULARY))
    for layer, shard in SHARDS:
        weights[layer, :, half(VOCABULARY, shard)] = batch[key_of(layer, shard)]
    return weights


def alone(weights, ids):
    """Computes the round in one process."""
    batch = rollout(weights, ids)
    for shard in range(2):
        batch.update(score(batch, shard))
    return batch, {(layer, shard): learn(weights, batch, layer, shard) for layer, shard in SHARDS}


def play(store, weights, number):
    """Plays one round. Returns the actor's next weights, the mean reward, and the bytes that were moved."""
    rank = levada.rank()
    ids = [str(number * SAMPLES + i) for i in range(SAMPLES)]
    reference, next_shards = alone(weights, ids)
    store.store(rollout(weights, ids[ACTOR.coordinate(rank, "dp") :: ACTOR.size]))

    critic = exchange.destinations(CRITIC, exchange.all_gather(store).meta(), balance="flops", key="tokens")
    mine, shard = critic[CRITIC.coordinate(rank, "dp")].ids, CRITIC.coordinate(rank, "tp")
    moved = [exchange.redistribute(store, critic, ["tokens"])]
    got = store.get(mine, ["tokens"])
    assert got == reference.select(ids=mine, keys=["tokens"]), "the critic's tokens"
    store.update(score(got, shard))

    moved.append(exchange.redistribute(store, exchange.destinations(TRAINER, [ids]), reference.keys))
    batch = store.get(ids)
    assert batch == reference, "the trainer's batch"
    layer, shard = TRAINER.coordinate(rank, "pp"), TRAINER.coordinate(rank, "tp")
    trained = learn(weights, batch, layer, shard)
    store.remove(ids)

    def key(layer, shard):
        return f"layer{layer}.shard{shard}"

    name = f"weights {number + 1}"
    store.store(exchange.SampleBatch([name], {key(layer, shard): [trained]}))
    everybody = dict.fromkeys(range(ACTOR.size), [name])
    moved.append(exchange.redistribute(store, everybody, [key(*each) for each in SHARDS]))
    received = store.get([name])
    for each in SHARDS:
        assert received[key(*each)].tobytes() == next_shards[each].tobytes(), "the actor's weights"
    weights = whole(received, key)
    store.remove([name])
    return weights, batch["reward"].mean(), sum(each.moved_bytes for each in moved)


def main():
    rounds = int(sys.argv[1]) if sys.argv[1:] else 10
    if levada.world_size() != ACTOR.size:
        raise SystemExit(f"rollout_train.py runs on {ACTOR.size} ranks; start it with levada run -n {ACTOR.size}")
    store, weights = exchange.Store(), first_weights()
    for number in range(rounds):
        weights, reward, moved = play(store, weights, number)
        if levada.rank() == 0:
            print(f"round {number}: reward {reward:.3f}, moved {moved} bytes, all as computed alone", flush=True)


if __name__ == "__main__":
    main()
