"""attention.py -- PyTorch's side of bench/attention: attention.py THREADS fp32|bf16.

As a GPT uses it: (b, t, 3c) in, split into heads as views, scaled_dot_product_attention, (b, t, c)
out; and backward from there to the gradient of all three.  The protocol is bench/attention.c's.
"""
import statistics, sys, time, torch
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(1)
dtype = torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
print("ready", torch.__version__, flush=True)

for line in sys.stdin:
    b, t, heads, size, calls = map(int, line.split())
    c = heads * size
    qkv = (torch.rand(b, t, 3 * c) * 2 - 1).to(dtype).requires_grad_()
    dy = (torch.rand(b, t, c) * 2 - 1).to(dtype)

    def forward():
        q, k, v = (part.view(b, t, heads, size).transpose(1, 2) for part in qkv.split(c, 2))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(b, t, c)

    ahead, back = [], []
    for call in range(calls + 1):
        began = time.perf_counter()
        y = forward()
        between = time.perf_counter()
        torch.autograd.grad(y, qkv, dy)
        ahead.append(between - began)
        back.append(time.perf_counter() - between)
    print(f"{1e6 * statistics.median(ahead[1:]):.2f} {1e6 * statistics.median(back[1:]):.2f}",
          flush=True)
