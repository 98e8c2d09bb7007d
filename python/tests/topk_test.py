"""Tests that the compressor topk chooses what torch.topk chooses, on values without ties."""
import math
import sys
import unittest

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)

from compressors import Compression, Key, encode, find  # noqa: E402


class TopkTest(unittest.TestCase):
    def test_the_same_indices_and_values(self):
        topk = find(b"topk")
        for count in (1, 17, 1000, 65537, 300007):
            for ratio in (0.001, 0.01, 0.3, 1.0):
                values = torch.randperm(count).float().add(1) * (1 - 2 * (torch.rand(count) < 0.5))
                options = Compression(ratio=ratio)
                key = Key(rows=count, cols=1)
                k = max(1, math.ceil(ratio * count))
                size = topk.bytes(options, key, 0)
                self.assertEqual(size, 8 * k)
                rest, message = values.clone(), torch.zeros(2 * k, dtype=torch.int32)
                encode(topk, options, key, 0, None, rest.data_ptr(), message.data_ptr())
                indices = torch.topk(values.abs(), k).indices.sort().values
                self.assertTrue(torch.equal(message[:k].long(), indices))
                self.assertTrue(torch.equal(message[k:].view(torch.float32), values[indices]))
                expected = values.clone()
                expected[indices] = 0
                self.assertTrue(torch.equal(rest, expected))


if __name__ == "__main__":
    unittest.main()
