"""conv.py THREADS fp32|bf16 -- PyTorch's side of bench/conv; the protocol is that of bench/conv.c."""
import statistics, sys, time
import torch, torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
dtype = torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
print("ready", torch.__version__, flush=True)


def call_of(operation, n, h, w, cin, cout, kernel, stride, pad):
    def last(*shape):
        return torch.rand(*shape).sub_(0.5).to(dtype, memory_format=torch.channels_last)

    x, weight = last(n, cin, h, w), last(cout, cin, kernel, kernel)
    if operation == "forward":
        return lambda: F.conv2d(x, weight, None, stride, pad)
    dy = last(*F.conv2d(x, weight, None, stride, pad).shape)
    wanted = [operation == "input", operation == "weights", False]
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, wanted)


for line in sys.stdin:
    operation, *shape, seconds = line.split()
    call, times = call_of(operation, *map(int, shape)), []
    call()
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < 1000 and time.perf_counter() - began < float(seconds)):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    print(f"{statistics.median(times):.4f}", flush=True)
