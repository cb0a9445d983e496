# SPDX-License-Identifier: MIT
"""PyTorch: every sensible way to do each task; the fastest is compared."""

import math

import torch
import torch.nn.functional as F

from variant import Variant


class Peer:
    def __init__(self, threads):
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self.inference = torch.inference_mode()
        self.inference.__enter__()

    def facts(self):
        settings = torch.__config__.show().splitlines()
        libraries = [line.strip(" -") for line in settings if "Math Kernel" in line or "MKL-DNN" in line]
        return {
            "version": torch.__version__,
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "configuration": "; ".join(libraries),
            "threads": torch.get_num_threads(),
        }

    def variants(self, task):
        given = {name: torch.from_numpy(array) for name, array in task["arrays"].items()}
        return getattr(self, task["kind"])(task["shape"], given, task["copies"])

    def attention(self, s, given, copies):
        causal = bool(s["causal"])

        def public(query, key, value):
            grouped = query.shape[1] != key.shape[1]
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

        def plain(query, key, value):
            attend = torch.ops.aten._scaled_dot_product_attention_math
            return attend(query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1])[0]

        def heads_outside(x):  # [batch, heads, length, head_dim] in memory
            return x.transpose(1, 2).contiguous()

        def heads_inside(x):  # [batch, length, heads, head_dim] in memory, as projections write it
            return x.clone().transpose(1, 2)

        def on_copies(attend, laid_out, query):
            def made():
                pairs = [(laid_out(given["key"]), laid_out(given["value"])) for _ in range(copies)]
                calls = [lambda k=key, v=value: attend(query, k, v) for key, value in pairs]
                return Variant(calls, lambda out: self.canonical(out, s))

            return made

        for layout in (heads_outside, heads_inside):
            where = layout.__name__.replace("_", " ")
            query = layout(given["query"])
            yield f"scaled_dot_product_attention, {where}", on_copies(public, layout, query)
            yield f"its math path, {where}", on_copies(plain, layout, query)
            if s["heads"] != s["kv_heads"] and s["query_length"] == 1:
                # The heads that share keys as if they were rows of one head.
                rows = query.reshape(s["batch"], s["kv_heads"], s["heads"] // s["kv_heads"], s["head_dim"])
                yield f"scaled_dot_product_attention, groups as rows, {where}", on_copies(public, layout, rows)
                yield f"its math path, groups as rows, {where}", on_copies(plain, layout, rows)

    @staticmethod
    def canonical(out, s):
        out = out.reshape(s["batch"], s["heads"], s["query_length"], s["head_dim"])
        return out.transpose(1, 2).contiguous().numpy()

    @staticmethod
    def projections(x, weight, bias, rows):
        """Ways to compute x weight^T + bias, each as (name, make), where make(weight) gives a call."""

        def functional(weight):
            return lambda x: F.linear(x, weight, bias)

        def into_memory(weight):
            out = torch.empty(rows, weight.shape[0])
            transposed = weight.t()
            return lambda x: torch.addmm(bias, x, transposed, out=out)

        def packed_onednn(weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
            return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

        def packed_mkl(weight):
            packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
            return lambda x: torch.ops.mkl._mkl_linear(x, packed, weight, bias, rows)

        yield "linear", functional
        yield "addmm into given memory", into_memory
        yield "oneDNN, weight packed before", packed_onednn
        yield "MKL, weight packed before", packed_mkl

    def linear(self, s, given, copies):
        x, weight, bias = given["x"], given["weight"], given["bias"]
        for name, make in self.projections(x, weight, bias, s["rows"]):

            def made(make=make):
                functions = [make(weight.clone()) for _ in range(copies)]
                return Variant([lambda f=f: f(x) for f in functions], lambda out: out.numpy())

            yield name, made

    def layer(self, s, given, copies):
        x = given["x"][None]

        def module():
            layer = torch.nn.MultiheadAttention(s["d_model"], s["heads"], batch_first=True)
            layer.in_proj_weight.copy_(given["in_weight"])
            layer.in_proj_bias.copy_(given["in_bias"])
            layer.out_proj.weight.copy_(given["out_weight"])
            layer.out_proj.bias.copy_(given["out_bias"])
            layer.eval()
            return lambda: layer(x, x, x, need_weights=False)[0]

        def by_hand(make_in, make_out):
            def made():
                project_in, project_out = make_in(given["in_weight"].clone()), make_out(given["out_weight"].clone())

                def call():
                    parts = project_in(given["x"]).view(1, s["length"], 3, s["heads"], -1).permute(2, 0, 3, 1, 4)
                    attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
                    return project_out(attended.transpose(1, 2).reshape(s["length"], s["d_model"]))

                return call

            return made

        def on_copies(make):
            return lambda: Variant([make() for _ in range(copies)], lambda out: out.reshape(given["x"].shape).numpy())

        yield "nn.MultiheadAttention", on_copies(module)
        ways_in = self.projections(given["x"], given["in_weight"], given["in_bias"], s["length"])
        ways_out = self.projections(given["x"], given["out_weight"], given["out_bias"], s["length"])
        for (name, make_in), (_, make_out) in zip(ways_in, ways_out):
            yield f"scaled_dot_product_attention with {name}", on_copies(by_hand(make_in, make_out))

    def table(self, s, given, copies):
        length, d_model = s["length"], s["d_model"]

        def angles():
            position = torch.arange(length, dtype=torch.float32).unsqueeze(1)
            return position * torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * (-math.log(1e4) / d_model))

        def strided():
            out = torch.empty(length, d_model)
            angle = angles()
            out[:, 0::2] = torch.sin(angle)
            out[:, 1::2] = torch.cos(angle)
            return out

        def into_strided():
            out = torch.empty(length, d_model)
            angle = angles()
            torch.sin(angle, out=out[:, 0::2])
            torch.cos(angle, out=out[:, 1::2])
            return out

        def stacked():
            angle = angles()
            return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)

        for way in (strided, into_strided, stacked):
            yield way.__name__.replace("_", " "), lambda way=way: Variant([way], lambda out: out.numpy())
