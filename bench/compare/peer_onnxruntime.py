# SPDX-License-Identifier: MIT
"""ONNX Runtime: every operator and layout that can do each task; the fastest is compared.

Inputs and outputs are bound once, so that a call copies nothing.
"""

import numpy as np
import onnx
import onnx.helper
import onnxruntime

from variant import Variant

MICROSOFT = "com.microsoft"


def tensor(name, shape, kind=onnx.TensorProto.FLOAT):
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def node(operator, inputs, outputs, domain="", **attributes):
    return onnx.helper.make_node(operator, inputs, outputs, domain=domain, **attributes)


def model(nodes, inputs, outputs, constants=None):
    """A model as bytes; constants are arrays by name."""
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = onnx.helper.make_graph(nodes, "compared", inputs, outputs, stored)
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


class Peer:
    def __init__(self, threads):
        self.threads = threads
        onnxruntime.set_default_logger_severity(3)
        onnxruntime.set_global_thread_pool_sizes(threads, 1)

    def facts(self):
        return {"version": onnxruntime.__version__, "onnx": onnx.__version__}

    def variants(self, task):
        return getattr(self, task["kind"])(task["shape"], task["arrays"], task["copies"])

    def session(self, serialized):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # All sessions share their threads, or those of one copy would be in the way of the next.
        options.use_per_session_threads = False
        return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])

    @staticmethod
    def bound(session, inputs, in_place=None):
        """A call with everything bound; in_place maps outputs to the inputs whose memory they take."""
        binding = session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        outputs = []
        for output in session.get_outputs():
            if in_place and output.name in in_place:
                value = values[in_place[output.name]]
            else:
                value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(output.shape, np.float32, "cpu", 0)
            binding.bind_ortvalue_output(output.name, value)
            outputs.append(value)

        def call(keep=(inputs, values)):
            session.run_with_iobinding(binding)
            return outputs[0]

        return call

    # ---------------------------------------------------------------- attention

    def attention(self, s, given, copies):
        rows = s["heads"] // s["kv_heads"] if s["query_length"] == 1 else 1
        yield "Attention, heads outside", lambda: self.standard(s, given, copies, outside=True)
        yield "Attention, heads inside", lambda: self.standard(s, given, copies, outside=False)
        if rows > 1:
            # The heads that share keys as if they were rows of one head.
            query = given["query"].reshape(s["batch"], s["kv_heads"], rows, s["head_dim"]).transpose(0, 2, 1, 3)
            folded = dict(s, heads=s["kv_heads"], query_length=rows)
            arrays = dict(given, query=np.ascontiguousarray(query))
            for name, make in self.attention(folded, arrays, copies):
                yield f"{name}, groups as rows", lambda make=make: self.unfolded(make(), s)
        if s["heads"] == s["kv_heads"]:
            yield "MultiHeadAttention", lambda: self.multi_head(s, given, copies, outside=False)
            yield "MultiHeadAttention, keys outside", lambda: self.multi_head(s, given, copies, outside=True)
        if s["causal"]:
            yield "GroupQueryAttention", lambda: self.group_query(s, given, copies)
        if s["query_length"] == 1:
            yield "GroupQueryAttention on a cache", lambda: self.group_query_cache(s, given, copies)

    @staticmethod
    def unfolded(variant, s):
        def result(value):
            folded = variant.result(value)  # [batch, heads of a group, groups, head_dim]
            return folded.transpose(0, 2, 1, 3).reshape(s["batch"], 1, s["heads"], s["head_dim"])

        return Variant(variant.calls, result)

    @staticmethod
    def heads_outside(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3))

    @staticmethod
    def flat(x):
        return x.reshape(*x.shape[:2], -1)

    @staticmethod
    def as_query(s):
        return lambda value: value.numpy().reshape(s["batch"], s["query_length"], s["heads"], s["head_dim"])

    def on_copies(self, serialized, query, pairs, result):
        session = self.session(serialized)
        calls = [self.bound(session, {"query": query, "key": key, "value": value}) for key, value in pairs]
        return Variant(calls, result)

    def standard(self, s, given, copies, outside):
        """The operator of the ONNX standard. On one query row causality hides nothing."""
        causal = s["causal"] if s["query_length"] == s["key_length"] else 0
        laid_out = self.heads_outside if outside else self.flat
        query = laid_out(given["query"])
        pairs = [(laid_out(given["key"]).copy(), laid_out(given["value"]).copy()) for _ in range(copies)]
        attributes = {} if outside else {"q_num_heads": s["heads"], "kv_num_heads": s["kv_heads"]}
        nodes = [node("Attention", ["query", "key", "value"], ["out"], is_causal=causal, **attributes)]
        inputs = [tensor("query", query.shape), tensor("key", pairs[0][0].shape), tensor("value", pairs[0][0].shape)]
        shape = (s["batch"], s["heads"], s["query_length"], s["head_dim"])

        def result(value):
            return value.numpy().reshape(shape).transpose(0, 2, 1, 3) if outside else self.as_query(s)(value)

        return self.on_copies(model(nodes, inputs, [tensor("out", query.shape)]), query, pairs, result)

    def multi_head(self, s, given, copies, outside):
        query = self.flat(given["query"])
        laid_out = self.heads_outside if outside else self.flat
        pairs = [(laid_out(given["key"]).copy(), laid_out(given["value"]).copy()) for _ in range(copies)]
        attributes = {"num_heads": s["heads"], "unidirectional": s["causal"]}
        nodes = [node("MultiHeadAttention", ["query", "key", "value"], ["out"], MICROSOFT, **attributes)]
        inputs = [tensor("query", query.shape), tensor("key", pairs[0][0].shape), tensor("value", pairs[0][0].shape)]
        return self.on_copies(model(nodes, inputs, [tensor("out", query.shape)]), query, pairs, self.as_query(s))

    def group_query(self, s, given, copies):
        """A prompt without a cache."""
        return self.grouped(s, [{name: self.flat(given[name]) for name in ("query", "key", "value")}] * copies)

    def group_query_cache(self, s, given, copies):
        """One token on a cache that it is added to in place."""
        arrays = {"query": self.flat(given["query"])}
        arrays |= {name: self.flat(given[name][:, -1:]) for name in ("key", "value")}
        caches = [{f"past_{name}": self.heads_outside(given[name]) for name in ("key", "value")} for _ in range(copies)]
        return self.grouped(s, [arrays | cache for cache in caches])

    def grouped(self, s, bindings):
        length = s["key_length"]
        cached = "past_key" in bindings[0]
        lengths = {
            "seqlens_k": np.full((s["batch"],), length - 1, np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        past = ["past_key", "past_value"] if cached else ["", ""]
        operands = ["query", "key", "value", *past, *lengths]
        present = ["present_key", "present_value"]
        attributes = {"num_heads": s["heads"], "kv_num_heads": s["kv_heads"]}
        nodes = [node("GroupQueryAttention", operands, ["out", *present], MICROSOFT, **attributes)]
        inputs = [tensor(name, array.shape) for name, array in bindings[0].items()]
        inputs += [tensor(name, array.shape, onnx.TensorProto.INT32) for name, array in lengths.items()]
        cache = (s["batch"], s["kv_heads"], length, s["head_dim"])
        outputs = [tensor("out", bindings[0]["query"].shape), *(tensor(name, cache) for name in present)]
        session = self.session(model(nodes, inputs, outputs))
        in_place = dict(zip(present, past)) if cached else None
        calls = [self.bound(session, arrays | lengths, in_place) for arrays in bindings]
        return Variant(calls, self.as_query(s))

    # ---------------------------------------------------------------- projections and layers

    def with_constants(self, nodes, x, out_shape, constants, copies, result):
        """Weights are constants of the model, which the session packs when it is made; so each copy is a session."""
        serialized = model(nodes, [tensor("x", x.shape)], [tensor("out", out_shape)], constants)
        sessions = [self.session(serialized) for _ in range(copies)]
        return Variant([self.bound(session, {"x": x}) for session in sessions], result)

    def linear(self, s, given, copies):
        x, out_shape = given["x"], (s["rows"], s["out_features"])
        transposed = np.ascontiguousarray(given["weight"].T)

        def variant(nodes, constants):
            return lambda: self.with_constants(nodes, x, out_shape, constants, copies, lambda out: out.numpy())

        product_and_sum = [node("MatMul", ["x", "weight"], ["product"]), node("Add", ["product", "bias"], ["out"])]
        yield "MatMul and Add", variant(product_and_sum, {"weight": transposed, "bias": given["bias"]})
        gemm = [node("Gemm", ["x", "weight", "bias"], ["out"], transB=1)]
        yield "Gemm", variant(gemm, {"weight": given["weight"], "bias": given["bias"]})

    def layer(self, s, given, copies):
        x = given["x"][None]
        d_model, heads = s["d_model"], s["heads"]
        constants = {
            "in_weight": np.ascontiguousarray(given["in_weight"].T),
            "in_bias": given["in_bias"],
            "out_weight": np.ascontiguousarray(given["out_weight"].T),
            "out_bias": given["out_bias"],
        }
        last = [node("MatMul", ["joined", "out_weight"], ["mixed"]), node("Add", ["mixed", "out_bias"], ["out"])]

        def variant(nodes, more=None):
            arrays = {**constants, **(more or {})}
            used = {name: arrays[name] for n in nodes + last for name in n.input if name in arrays}
            return lambda: self.with_constants(nodes + last, x, x.shape, used, copies, lambda out: out.numpy()[0])

        fused = node("Attention", ["x", "in_weight", "in_bias"], ["joined"], MICROSOFT, num_heads=heads)
        yield "Attention with its projections", variant([fused])

        def attention(bias=""):
            return node("MultiHeadAttention", ["q", "k", "v", bias], ["joined"], MICROSOFT, num_heads=heads)

        product = node("MatMul", ["x", "in_weight"], ["product"])
        together = [product, node("Add", ["product", "in_bias"], ["qkv"])]
        split = node("Split", ["qkv"], ["q", "k", "v"], axis=2, num_outputs=3)
        yield "MatMul, Split, MultiHeadAttention", variant([*together, split, attention()])

        parts = {f"{n}_weight": np.ascontiguousarray(w.T) for n, w in zip("qkv", np.split(given["in_weight"], 3))}
        apart = [node("MatMul", ["x", f"{name}_weight"], [name]) for name in "qkv"]
        yield "three MatMul, MultiHeadAttention", variant([*apart, attention("in_bias")], parts)

    def table(self, s, given, copies):
        """Left out: nobody computes a table of constants in a model."""
        return iter(())
