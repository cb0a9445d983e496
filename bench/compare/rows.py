# SPDX-License-Identifier: MIT
"""What is compared: the rows, their inputs, and their results in float64."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    kind: str  # attention, layer, linear or table
    shape: dict[str, int]
    limit: str  # fma, read (memory that no cache holds) or write
    amount: float  # useful floating-point operations, or bytes, of one call
    goal: int | None = None  # per cent of the limit that headwave aims at

    @property
    def cold(self):
        """Whether calls go through copies of the data, together too large for the caches."""
        return self.limit == "read"


def attention(name, batch, query_length, key_length, heads, kv_heads, head_dim, causal=False, goal=None):
    shape = dict(
        batch=batch,
        query_length=query_length,
        key_length=key_length,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=int(causal),
    )
    if query_length == 1:
        return Row(name, "attention", shape, "read", 2 * 4 * batch * key_length * kv_heads * head_dim, goal)
    pairs = query_length * key_length
    if causal:  # the last query sees every key
        pairs -= query_length * (query_length - 1) // 2
    return Row(name, "attention", shape, "fma", 4 * batch * heads * head_dim * pairs, goal)


def layer(length, d_model, heads, goal=None):
    name = f"layer L{length} d{d_model} H{heads}"
    shape = dict(length=length, d_model=d_model, heads=heads)
    weights = 4 * d_model * d_model
    if length == 1:
        return Row(name, "layer", shape, "read", 4 * weights, goal)
    return Row(name, "layer", shape, "fma", 2 * length * weights + 4 * length * length * d_model, goal)


def linear(rows, in_features, out_features):
    name = f"projection {rows} x {in_features} -> {out_features}"
    shape = dict(rows=rows, in_features=in_features, out_features=out_features)
    weights = in_features * out_features
    if rows == 1:
        return Row(name, "linear", shape, "read", 4 * weights)
    return Row(name, "linear", shape, "fma", 2 * rows * weights)


def table(length, d_model, goal=None):
    shape = dict(length=length, d_model=d_model)
    return Row(f"table {length} x {d_model}", "table", shape, "write", 4 * length * d_model, goal)


ROWS = [
    attention("L2048 H8 d64", 1, 2048, 2048, 8, 8, 64, goal=86),
    attention("L2048 H8 d64 causal", 1, 2048, 2048, 8, 8, 64, causal=True, goal=82),
    attention("L1024 H8 d128", 1, 1024, 1024, 8, 8, 128, goal=89),
    attention("L1024 H32/8 d128 causal", 1, 1024, 1024, 32, 8, 128, causal=True, goal=84),
    attention("BERT-base L512 H12 d64", 1, 512, 512, 12, 12, 64, goal=84),
    attention("ViT-B/16 B4 L197 H12 d64", 4, 197, 197, 12, 12, 64, goal=80),
    attention("MiniLM L128 H12 d32", 1, 128, 128, 12, 12, 32, goal=74),
    attention("L32 H8 d64", 1, 32, 32, 8, 8, 64, goal=62),
    attention("decode 1 x 1024 H12 d64", 1, 1, 1024, 12, 12, 64, goal=90),
    attention("decode 1 x 4096 H32/8 d128", 1, 1, 4096, 32, 8, 128, goal=85),
    layer(128, 768, 12, goal=92),
    layer(512, 512, 8, goal=90),
    layer(2048, 512, 8, goal=87),
    layer(16, 768, 12, goal=80),
    layer(1, 768, 12, goal=90),
    *(linear(rows, 768, columns) for columns in (2304, 768) for rows in (1, 8, 32, 128, 512)),
    table(4096, 1024, goal=80),
]


def inputs(row):
    """The float32 inputs: about normal with variance 1, weights scaled so that results are too; the same every time."""
    source = np.random.default_rng(1)

    def normal(*shape, scale=1.0):
        return (scale * source.standard_normal(shape)).astype(np.float32)

    s = row.shape
    if row.kind == "attention":
        keys = (s["batch"], s["key_length"], s["kv_heads"], s["head_dim"])
        query = (s["batch"], s["query_length"], s["heads"], s["head_dim"])
        return {"query": normal(*query), "key": normal(*keys), "value": normal(*keys)}
    if row.kind == "layer":
        d, scale = s["d_model"], s["d_model"] ** -0.5
        return {
            "x": normal(s["length"], d),
            "in_weight": normal(3 * d, d, scale=scale),
            "in_bias": normal(3 * d),
            "out_weight": normal(d, d, scale=scale),
            "out_bias": normal(d),
        }
    if row.kind == "linear":
        weight = normal(s["out_features"], s["in_features"], scale=s["in_features"] ** -0.5)
        return {"x": normal(s["rows"], s["in_features"]), "weight": weight, "bias": normal(s["out_features"])}
    return {}


def exact_attention(query, key, value, causal=False):
    """In float64. query: [batch, length, heads, head_dim]; key, value: [batch, key_length, kv_heads, head_dim]."""
    batch, length, heads, head_dim = query.shape
    shared = heads // key.shape[2]
    out = np.empty(query.shape)
    hidden = np.triu(np.ones((length, key.shape[1]), bool), 1 + key.shape[1] - length) if causal else None
    for b in range(batch):
        for h in range(heads):
            scores = query[b, :, h].astype(float) @ key[b, :, h // shared].astype(float).T / np.sqrt(head_dim)
            if causal:
                scores[hidden] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
            out[b, :, h] = scores @ value[b, :, h // shared].astype(float)
    return out


def exact(row, given):
    """The result in float64 for the same float32 inputs, in the shape that every peer's result is brought to."""
    s = row.shape
    wide = {name: array.astype(float) for name, array in given.items()}
    if row.kind == "attention":
        return exact_attention(wide["query"], wide["key"], wide["value"], bool(s["causal"]))
    if row.kind == "linear":
        return wide["x"] @ wide["weight"].T + wide["bias"]
    if row.kind == "layer":
        projected = wide["x"] @ wide["in_weight"].T + wide["in_bias"]
        parts = projected.reshape(1, s["length"], 3, s["heads"], -1)
        attended = exact_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2])
        return attended.reshape(s["length"], s["d_model"]) @ wide["out_weight"].T + wide["out_bias"]
    angles = np.arange(s["length"])[:, None] * 10000.0 ** (-np.arange(0, s["d_model"], 2) / s["d_model"])
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(s["length"], s["d_model"])
